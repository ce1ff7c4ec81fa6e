import { execFileSync } from "node:child_process";
import { crc32 } from "node:zlib";
import fc from "fast-check";
import { afterEach, describe, expect, it } from "vitest";
import { trunkAddon } from "../src/index.ts";
import { bytesOf, normalBf16, uniforms } from "./weights.ts";

const addon = trunkAddon();
const best = addon.isa();
const ISAS = ["scalar", "avx2", "avx512", "neon"].filter((isa) => addon.setIsa(isa));
addon.setIsa(best);
afterEach(() => {
  addon.setIsa(best);
});

const long = process.env["K3_NIGHTLY"] === "1" ? 20 : 1;

/** Codes, decodes with every instruction set, and gives the stored size, or null when the block is stored raw. */
function roundTrip(raw: Uint8Array): number | null {
  const stored = addon.encode(raw);
  if (!stored) return null;
  expect(stored.length).toBeLessThan(raw.length);
  for (const isa of ISAS) {
    addon.setIsa(isa);
    const decoded = addon.decode(stored, raw.length);
    expect(decoded && Buffer.compare(decoded, raw), isa).toBe(0);
  }
  return stored.length;
}

/** Blocks whose exponents come from few or many values, with some values that are arbitrary bits. */
const anyBlock = fc
  .record({
    count: fc.oneof(fc.integer({ min: 1, max: 700 }), fc.integer({ min: 3900, max: 13_000 })),
    exponents: fc.array(fc.integer({ min: 0, max: 255 }), { minLength: 1, maxLength: 30 }),
    skew: fc.integer({ min: 1, max: 6 }),
    arbitrary: fc.double({ min: 0, max: 0.2, noNaN: true }),
    seed: fc.integer(),
  })
  .map(({ count, exponents, skew, arbitrary, seed }) => {
    const uniform = uniforms(seed);
    return Uint16Array.from({ length: count }, () => {
      const bits = Math.floor(uniform() * 65536);
      if (uniform() < arbitrary) return bits;
      const exponent = exponents[Math.floor(uniform() ** skew * exponents.length)]!;
      return (bits & 0x807f) | (exponent << 7);
    });
  });

describe(`the bf16 codec (${ISAS.join(", ")})`, () => {
  it("gives back every block, and the same on every instruction set", () => {
    let coded = 0;
    fc.assert(
      fc.property(anyBlock, (values) => {
        if (roundTrip(bytesOf(values)) !== null) coded++;
      }),
      { numRuns: 300 * long },
    );
    expect(coded).toBeGreaterThan(50 * long);
  });

  it("keeps all 65,536 bit patterns: NaN payloads, infinities, -0.0, denormals", () => {
    const values = normalBf16(1 << 19, 0.02, 3);
    for (let bits = 0; bits < 65536; bits++) values[bits * 7] = bits;
    expect(roundTrip(bytesOf(values))).not.toBeNull();
  });

  it.each([0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc1, 0x0001, 0x3f80])(
    "codes a constant block of 0x%s",
    (bits) => {
      const stored = roundTrip(bytesOf(new Uint16Array(50_000).fill(bits)));
      // One byte of sign and mantissa, two bits of code, and the directory.
      expect(stored! / 100_000).toBeLessThan(0.629);
    },
  );

  it("stores random bits, and blocks too small to gain, raw", () => {
    const uniform = uniforms(5);
    expect(addon.encode(bytesOf(Uint16Array.from({ length: 1 << 18 }, () => uniform() * 65536)))).toBeNull();
    for (const count of [0, 1, 2, 63, 64, 65]) expect(addon.encode(new Uint8Array(2 * count))).toBeNull();
  });

  it.each([1, 0.02, 0.0118, 1e-3])("takes at most 0.68 of normal weights of deviation %s", (sigma) => {
    const raw = bytesOf(normalBf16(1 << 19, sigma, 11));
    expect(roundTrip(raw)! / raw.length).toBeLessThan(0.68);
  });

  it("is deterministic: the coded bytes of fixed weights are known", () => {
    // Values from an integer recurrence, so that they are the same everywhere.
    let state = 1;
    const values = Uint16Array.from({ length: 10_000 }, () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return ((state >>> 16) & 0x807f) | ((120 - Math.clz32(state | 1)) << 7);
    });
    const stored = addon.encode(bytesOf(values))!;
    expect([stored.length, crc32(stored)]).toEqual(RECORDED);
  });

  it("decodes any run of chunks", () => {
    const values = normalBf16(4096 * 5 + 123, 0.5, 2);
    const raw = bytesOf(values);
    const stored = addon.encode(raw)!;
    for (const isa of ISAS) {
      addon.setIsa(isa);
      for (let first = 0; first <= 6; first++) {
        for (let count = 0; first + count <= 6; count++) {
          const part = addon.decode(stored, raw.length, first, count)!;
          expect(Buffer.compare(part, raw.subarray(first * 8192, (first + count) * 8192)), isa).toBe(0);
        }
      }
    }
  });

  it("starts at any address", () => {
    const raw = bytesOf(normalBf16(9000, 0.5, 9));
    const stored = addon.encode(raw)!;
    for (let shift = 1; shift < 9; shift++) {
      const moved = new Uint8Array(stored.length + shift).subarray(shift);
      moved.set(stored);
      const source = new Uint8Array(raw.length + shift).subarray(shift);
      source.set(raw);
      expect(addon.encode(source)).toEqual(stored);
      for (const isa of ISAS) {
        addon.setIsa(isa);
        expect(Buffer.compare(addon.decode(moved, raw.length)!, raw)).toBe(0);
      }
    }
  });
});

/** Length and CRC-32 of the coded block of the test above, as format 1 first gave them: trunks are compared by bytes. */
const RECORDED = [13179, 1977577056];

it("K3_ISA chooses the instruction set, and one that is not there is passed over", () => {
  const url = new URL("../dist/index.js", import.meta.url).href;
  const script = `const { trunkAddon } = await import("${url}"); console.log(trunkAddon().isa());`;
  const isaWith = (K3_ISA: string) =>
    execFileSync(process.execPath, ["--input-type=module", "-e", script], {
      encoding: "utf8",
      env: { ...process.env, K3_ISA },
    }).trim();
  for (const isa of ISAS) expect(isaWith(isa)).toBe(isa);
  expect(isaWith("altivec")).toBe(ISAS.at(-1));
});

describe("damaged blocks", () => {
  const raw = bytesOf(normalBf16(4096 * 3 + 77, 0.3, 21));
  const stored = addon.encode(raw)!;

  const decodesSafely = (bytes: Uint8Array, rawBytes: number) => {
    const [first = null, ...others] = ISAS.map((isa) => {
      addon.setIsa(isa);
      return addon.decode(bytes, rawBytes);
    });
    if (first) expect(first.length).toBe(rawBytes);
    // The same verdict, and the same bytes, on every instruction set.
    const agrees = (other: Uint8Array | null) =>
      first && other ? Buffer.compare(first, other) === 0 : first === other;
    expect(others.every(agrees)).toBe(true);
  };

  it("are refused or decode to something, whatever bytes are changed", () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.nat(stored.length - 1), fc.nat(255)), { minLength: 1, maxLength: 40 }),
        fc.boolean(),
        (changes, nearHeader) => {
          const bytes = stored.slice();
          for (const [at, value] of changes) bytes[nearHeader ? at % 160 : at] = value;
          decodesSafely(bytes, raw.length);
        },
      ),
      { numRuns: 1500 * long },
    );
  });

  it("are refused when they are shorter, longer, or of another decoded size", () => {
    for (let cut = 1; cut < stored.length; cut += 97) {
      expect(addon.decode(stored.subarray(0, stored.length - cut), raw.length)).toBeNull();
    }
    const longer = new Uint8Array(stored.length + 1);
    longer.set(stored);
    expect(addon.decode(longer, raw.length)).toBeNull();
    for (const size of [0, 1, raw.length - 2, raw.length + 1, raw.length + 128, 2 ** 26 + 2, 2 ** 40]) {
      expect(addon.decode(stored, size), String(size)).toBeNull();
    }
  });

  it("that are arbitrary bytes are refused or decode to something", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 3000 }), fc.nat(4000), (bytes, rawBytes) => {
        decodesSafely(bytes, rawBytes);
      }),
      { numRuns: 500 * long },
    );
  });

  it("with all codes 'other' and no others to take are noticed", () => {
    const bytes = stored.slice();
    const values = raw.length / 2;
    const codes = 64 + 64 + Math.ceil(values / 64) * 64;
    bytes.fill(0xff, codes, codes + 1024);
    for (const isa of ISAS) {
      addon.setIsa(isa);
      expect(addon.decode(bytes, raw.length), isa).toBeNull();
    }
  });
});

describe("crc32", () => {
  it("is zlib's, at every length, address and seed", () => {
    const bytes = new Uint8Array(1100);
    const uniform = uniforms(8);
    for (let i = 0; i < bytes.length; i++) bytes[i] = uniform() * 256;
    for (let length = 0; length < 1000; length++) {
      const part = bytes.subarray(length % 61, (length % 61) + length);
      expect(addon.crc32(part)).toBe(crc32(part));
      expect(addon.crc32(part, 0x1234567)).toBe(crc32(part, 0x1234567));
    }
  });

  it("gives the published check value", () => {
    // CRC-32/ISO-HDLC in the catalogue of parametrised CRC algorithms: check 0xCBF43926.
    expect(addon.crc32(new TextEncoder().encode("123456789"))).toBe(0xcbf43926);
  });
});
