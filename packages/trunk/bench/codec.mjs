// node bench/codec.mjs [--json]: ratio, encoding and decoding speed on one core, per instruction set, on weights whose
// exponents have 2.5, 2.7 and 2.9 bits of entropy. Speeds are of decoded bytes; the best of many passes over 1 MiB.
import { createRequire } from "node:module";

if (process.argv.includes("--help")) {
  console.log("node packages/trunk/bench/codec.mjs [--json]");
  process.exit(0);
}
const native = createRequire(import.meta.url)("../build/Release/k3_trunk.node");
const VALUES = 1 << 19;

/** Small deterministic generator (SplitMix32), so that the numbers are of the same weights everywhere. */
function generator(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x9e3779b9) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return ((z ^ (z >>> 16)) >>> 0) / 2 ** 32;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  return normal;
}

/** Normal weights of deviation sigma whose rows of 4096 are scaled by exp(spread times a normal deviate). */
function weights(sigma, spread) {
  const normal = generator(7);
  const single = new Float32Array(VALUES);
  for (let i = 0, scale = 1; i < VALUES; i++) {
    if (i % 4096 === 0) scale = sigma * Math.exp(spread * normal());
    single[i] = scale * normal();
  }
  const bits = new Uint32Array(single.buffer);
  return Uint16Array.from(bits, (b) => (b + 0x7fff + ((b >>> 16) & 1)) >>> 16);
}

function entropy(values) {
  const counts = new Float64Array(256);
  for (const v of values) counts[(v >> 7) & 0xff]++;
  return counts.reduce(
    (sum, n) => (n > 0 ? sum - (n / values.length) * Math.log2(n / values.length) : sum),
    0,
  );
}

const rows = [];
for (const [sigma, spread] of [
  [0.02, 0],
  [0.0118, 0],
  [0.02, 0.4],
  [0.02, 0.66],
]) {
  const values = weights(sigma, spread);
  const raw = new Uint8Array(values.buffer);
  const row = { sigma, spread, entropy: entropy(values), ratio: native.encode(raw).length / raw.length };
  const best = native.isa();
  const speed = (what, repeats) => raw.length / native.bench(what, raw, repeats) / 1e9;
  row.encode = speed("encode", 60);
  for (const isa of ["scalar", "avx2", "avx512", "neon"]) {
    if (native.setIsa(isa)) row[isa] = speed("decode", isa === "scalar" ? 60 : 400);
  }
  native.setIsa(best);
  row.crc32 = speed("crc32", 200);
  rows.push(row);
}
if (process.argv.includes("--json")) console.log(JSON.stringify(rows));
else {
  console.log("sigma   spread  bits  bound  ratio   encode  scalar   avx2  avx512    neon   crc32  (GB/s)");
  for (const r of rows) {
    const gb = (x) => (x === undefined ? "-" : x.toFixed(1)).padStart(7);
    const bound = ((8 + r.entropy) / 16).toFixed(3);
    console.log(
      `${String(r.sigma).padEnd(7)} ${String(r.spread).padEnd(6)}  ${r.entropy.toFixed(2)}  ${bound}  ${r.ratio.toFixed(4)} ` +
        [r.encode, r.scalar, r.avx2, r.avx512, r.neon, r.crc32].map(gb).join(" "),
    );
  }
}
