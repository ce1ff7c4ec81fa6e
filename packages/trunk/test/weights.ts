/** A small seeded generator of uniform numbers in [0, 1): mulberry32. */
export function uniforms(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 15), z | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** `count` bf16 values of a normal distribution, as their bits, rounded to nearest even. */
export function normalBf16(count: number, sigma: number, seed: number): Uint16Array {
  const uniform = uniforms(seed);
  const single = Float32Array.from({ length: count }, () => {
    return sigma * Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  });
  return Uint16Array.from(new Uint32Array(single.buffer), (b) => (b + 0x7fff + ((b >>> 16) & 1)) >>> 16);
}

export const bytesOf = (values: Uint16Array): Uint8Array =>
  new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
