#!/usr/bin/env node
import { main } from "../dist/main.js";

// A reader that has seen enough (| head) is no fault; packing goes on where it was when it is called again.
process.stdout.on("error", (error) => process.exit(error.code === "EPIPE" ? 0 : 1));
process.exitCode = await main(process.argv.slice(2));
