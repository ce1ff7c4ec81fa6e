import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { pack } from "@k3/pack";
import { makeMiniature } from "@k3/testkit";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { bench } from "../src/index.ts";

const CHROMIUM = process.env["K3_CHROMIUM"] ?? "/usr/bin/chromium";
const present = existsSync(CHROMIUM);
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

let dir: string;
beforeAll(async () => {
  if (!present) return;
  dir = await mkdtemp(join(tmpdir(), "k3-report-"));
  await makeMiniature(join(dir, "model"));
  await pack({ modelDir: join(dir, "model"), trunkDir: join(dir, "trunk"), codec: "bf16" });
  await bench({
    modelDir: join(dir, "model"),
    trunkDir: [join(dir, "trunk"), null],
    memory: [350e6, 400e6],
    generate: 3,
    cold: "none",
    outDir: join(dir, "out"),
  });
}, 300_000);
afterAll(async () => {
  if (dir) await rm(dir, { recursive: true, force: true });
});

const title = `the HTML report${present ? "" : ` (skipped: there is no ${CHROMIUM}; apt-get install chromium, or set K3_CHROMIUM)`}`;

describe.skipIf(!present)(title, { timeout: 120_000 }, () => {
  it.each([
    ["a phone", 360, 740],
    ["a desk", 1280, 900],
  ])("is readable on %s, and asks for nothing from outside", async (_, width, height) => {
    const { chromium } = await import("playwright-core");
    const browser = await chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
    try {
      const page = await browser.newPage({ viewport: { width, height } });
      const requests: string[] = [];
      const errors: string[] = [];
      page.on("request", (request) => requests.push(request.url()));
      page.on("pageerror", (error) => errors.push(error.message));
      const url = pathToFileURL(join(dir, "out/bench.html")).href;
      await page.goto(url);
      expect(requests).toEqual([url]);
      expect(errors).toEqual([]);
      expect(await page.locator("figure svg").count()).toBe(5);
      // Nothing but the tables in their own scrollers may be wider than the screen.
      expect(await page.evaluate("document.documentElement.scrollWidth")).toBeLessThanOrEqual(width);
      for (const svg of await page.locator("figure svg").all()) {
        const box = (await svg.boundingBox())!;
        expect(box.width).toBeGreaterThan(width === 360 ? 300 : 500);
        expect(box.height).toBeGreaterThan(60);
      }
      // Text in SVG does not break: what is too long for its chart would be cut off.
      const overflowing = `[...document.querySelectorAll("svg text")]
        .filter((text) => { const { x, width } = text.getBBox(); return x < -1 || x + width > text.ownerSVGElement.viewBox.baseVal.width; })
        .map((text) => text.textContent)`;
      expect(await page.evaluate(overflowing)).toEqual([]);
      // The bar charts draw bars.
      expect(await page.locator("figure svg rect").count()).toBeGreaterThan(10);
      const text = await page.locator("body").textContent();
      for (const word of [
        "noise floor",
        "cold step",
        "first decode",
        "expert bytes avoided",
        "peak RSS",
        "as expected",
        "codec bf16",
        "no trunk",
        "by its control group",
      ])
        expect(text).toContain(word);
      const shot = process.env["K3_SCREENSHOT_DIR"];
      if (shot) await page.screenshot({ path: join(shot, `bench-${width}.png`), fullPage: true });
    } finally {
      await browser.close();
    }
  });
});
