#!/usr/bin/env node
// Builds the engine's addon from source: `node scripts/build-native.mjs`, or `npx k3-engine-build` when installed.
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { buildNative } from "@k3/trunk/build-native";

buildNative(resolve(dirname(fileURLToPath(import.meta.url)), ".."));
