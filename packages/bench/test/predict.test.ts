import { releasedConfig } from "@k3/checkpoint";
import { describe, expect, it } from "vitest";
import { avoidedShare, distinctExperts } from "../src/expert-reuse.ts";
import { plan, RELEASED_PLAN_SOURCE } from "../src/plan.ts";
import { leastMemoryBytes, predict } from "../src/predict.ts";

const config = releasedConfig();
/** An uncompressed trunk, many cores: what the published engines had, where only the disk mattered. */
const published = (weightBytes: number, diskBytesPerSecond: number) =>
  predict({ config, codec: "none", weightBytes, diskBytesPerSecond, threads: 124, promptTokens: 5 });

describe("predictions against published runs that were bound by the disk, within 25 %", () => {
  it.each([
    ["cloud VM, pd-standard at 246 MB/s", 0, 246e6, 547.6],
    ["im4gn.4xlarge, NVMe at 2.4 GB/s, 8 GiB", 0, 2.4e9, 72.47],
    ["NVMe at 4.6 GB/s, 8.73 GB", 0, 4.6e9, 26.5],
    ["the same, 19.5 GB", 19.5e9 - 8.7e9, 4.6e9, 24.2],
    ["the same, 51.6 GB", 51.6e9 - 8.7e9, 4.6e9, 19.8],
    ["56 GB of memory, NVMe at 1.6 GB/s", 56e9 - 8.7e9, 1.6e9, 65.2],
  ])("%s", (_, weights, disk, seconds) => {
    const { token_seconds, bound } = published(weights, disk);
    expect(bound).toBe("disk");
    expect(token_seconds / seconds).toBeGreaterThan(0.75);
    expect(token_seconds / seconds).toBeLessThan(1.25);
  });

  it("the first token of the cloud VM, a prompt of five: 902.53 s", () => {
    const { first_token_seconds } = published(0, 246e6);
    expect(first_token_seconds / 902.53).toBeGreaterThan(0.75);
    expect(first_token_seconds / 902.53).toBeLessThan(1.25);
  });
});

describe("reads of a token", () => {
  it("without any memory for weights are trunk, head, experts and one embedding row", () => {
    // k3-model arithmetic of the release: 108,811,877,376 + 2,348,810,240 + 43,008 not counted + 25,829,572,608 + 14,336.
    expect(published(0, 1e9).owed_bytes_per_token).toBe(136_990_274_560);
  });

  it("pin the trunk before they cache experts", () => {
    const { pinned_trunk_bytes, expert_cache_bytes, read_bytes_per_token } = published(100e9, 1e9);
    expect([pinned_trunk_bytes, expert_cache_bytes]).toEqual([100e9, 0]);
    expect(read_bytes_per_token).toBe(136_990_274_560 - 100e9);
    expect(published(200e9, 1e9).expert_cache_bytes).toBe(200e9 - 108_811_877_376 - 2_348_810_240);
  });

  it("shrink with the codec: 16 GB of memory reads under 90 GB", () => {
    const least = leastMemoryBytes(config);
    const at = predict({
      config,
      codec: "bf16",
      weightBytes: 16e9 - least,
      diskBytesPerSecond: 1e9,
      threads: 2,
      promptTokens: 5,
    });
    expect(at.read_bytes_per_token).toBeLessThan(90e9);
  });
});

describe("two disks", () => {
  it("are read in turns: the trunk from one, the experts and a row of the embedding from the other", () => {
    const setting = { config, codec: "none", weightBytes: 0, threads: 124, promptTokens: 5 } as const;
    const { token_seconds } = predict({
      ...setting,
      diskBytesPerSecond: 1e9,
      expertDiskBytesPerSecond: 0.5e9,
    });
    expect(token_seconds).toBeCloseTo(
      (108_811_877_376 + 2_348_810_240) / 1e9 + (25_829_572_608 + 14_336) / 0.5e9,
      6,
    );
  });
});

describe("expert reuse", () => {
  it("follows the published counts of distinct experts", () => {
    expect(distinctExperts(1, 896, 16)).toBe(16);
    // 99.70 GB for five tokens over 92 layers of 17,547,264 byte experts.
    expect(distinctExperts(5, 896, 16)).toBeCloseTo(99.7e9 / 92 / 17_547_264, 0);
    expect(distinctExperts(40, 896, 16)).toBeCloseTo(330.7e9 / 92 / 17_547_264, 0);
    expect(distinctExperts(100_000, 896, 16)).toBeLessThanOrEqual(896);
  });

  it("promises hardly more than was recorded, until everything fits", () => {
    const all = 82_432 * 17_547_264;
    expect(avoidedShare(0, 25.8e9, all)).toBe(0);
    expect(avoidedShare(16e9, 25.83e9, all)).toBeCloseTo(0.195, 2);
    // Twice what was recorded: not a hundredth more. All of them: nothing is left to be read.
    expect(avoidedShare(64e9, 25.83e9, all)).toBeCloseTo(0.35, 2);
    expect(avoidedShare(all, 25.83e9, all)).toBe(1);
  });
});

describe("plan", () => {
  it("gives bytes, hours and money for the blog's machine before anything is spent", async () => {
    const result = await plan({
      source: RELEASED_PLAN_SOURCE,
      memory: 16e9,
      diskBytesPerSecond: 240e6,
      downloadBytesPerSecond: 125e6,
      threads: 4,
      priceVmPerHour: 0.134,
      priceDiskPerGbMonth: 0.04,
    });
    expect(result.download_bytes).toBe(1_560_936_091_448);
    expect(result.stages.fetch.seconds).toBeCloseTo(1_560_936_091_448 / 125e6, 0);
    expect(result.stages.verify.seconds).toBeCloseTo(1_560_936_091_448 / 240e6, 0);
    expect(result.cost).toMatchObject({ currency: "USD" });
    // 0.134 for the machine and 0.04 x 1,636 GB / 730 h for the disk.
    expect(result.cost!.per_hour).toBeCloseTo(0.134 + (0.04 * result.disk_bytes) / 1e9 / 730, 6);
    expect(result.advice[0]).toContain("a disk twice as fast");
  });

  it("measures the disk that the source is on", async () => {
    // Where no file can be made: the kernel's own, on every Linux.
    const source = { ...RELEASED_PLAN_SOURCE, dir: "/sys" };
    await expect(plan({ source, memory: 16e9 })).rejects.toMatchObject({
      exit: expect.toSatisfy((exit) => [2, 5].includes(exit)),
      message: expect.stringContaining("measuring the disk of /sys needs"),
      hint: expect.stringContaining("--disk"),
    });
  });

  it("refuses a budget below the least, with both numbers", async () => {
    await expect(
      plan({ source: RELEASED_PLAN_SOURCE, memory: 0.9e9, diskBytesPerSecond: 1e9 }),
    ).rejects.toMatchObject({
      code: "E_MEMORY",
      exit: 5,
      details: { needed: expect.any(Number), available: 0.9e9 },
    });
  });
});
