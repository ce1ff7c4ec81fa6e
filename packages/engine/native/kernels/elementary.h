// exp, sigmoid and tanh on one vector. The same operations in the same order whatever the width.
// Included after a vector_*.h, whose F, I, fma ... it uses.
#pragma once

namespace k3 {
namespace {

// e^x = 2^n * e^r with n = round(x / ln 2), |r| <= ln 2 / 2. e^r = 1 + (r + r^2 * q(r)), q of degree 4
// (minimax, relative error 3.3e-9). 2^n is applied in two factors, so that results below 2^-126 are rounded
// once and right. Beyond the clamps the result is +infinity or 0 by the same arithmetic; NaN passes through
// them.
inline F exp_of(F x) {
  const F high = splat(89.0f);
  const F low = splat(-105.0f);
  x = x > high ? high : x;
  x = x < low ? low : x;
  const F shifter =
      splat(0x1.8p23f);  // adding it rounds to an integer and leaves that integer in the low bits
  const F shifted = fma(x, splat(0x1.715476p+0f), shifter);
  const F n = shifted - shifter;
  F r = fma(n, splat(-0x1.62ep-1f), x);  // n has 8 bits, this part of ln 2 has 12: exact
  r = fma(n, splat(-0x1.0bfbe8p-15f), r);
  F q = splat(0x1.6a1a72p-10f);
  q = fma(q, r, splat(0x1.123fc6p-7f));
  q = fma(q, r, splat(0x1.555916p-5f));
  q = fma(q, r, splat(0x1.55548ap-3f));
  q = fma(q, r, splat(0x1.fffffcp-2f));
  const F power = fma(r * r, q, r) + splat(1.0f);
  const I exponent = bits_of(shifted) - bits_of(shifter);
  const I half = exponent >> 1;
  const F first = float_of((half + splat_bits(127)) << 23);
  const F second = float_of((exponent - half + splat_bits(127)) << 23);
  return (power * first) * second;
}

inline F abs_of(F x) {
  return float_of(bits_of(x) & splat_bits(0x7fffffff));
}

// 1 / (1 + e^-x), from e = e^-|x| <= 1, so that neither side overflows or cancels.
inline F sigmoid_of(F x) {
  const F one = splat(1.0f);
  const F e = exp_of(float_of(bits_of(x) | splat_bits(INT32_MIN)));
  const F numerator = x < splat(0.0f) ? e : one;
  return numerator / (one + e);
}

// |x| < 0.625: x + x^3 * p(x^2), p of degree 4 (minimax, 0.08 ulp). Above: 1 - 2 / (e^2|x| + 1). The sign is
// put back at the end, so that tanh(-0) is -0.
inline F tanh_of(F x) {
  const F a = abs_of(x);
  const F z = a * a;
  F p = splat(-0x1.75e1c4p-8f);
  p = fma(p, z, splat(0x1.52269ap-6f));
  p = fma(p, z, splat(-0x1.b83c5ap-5f));
  p = fma(p, z, splat(0x1.110726p-3f));
  p = fma(p, z, splat(-0x1.555532p-2f));
  const F near = fma(a * z, p, a);
  const F one = splat(1.0f);
  const F far = one - splat(2.0f) / (exp_of(a + a) + one);
  const F t = a < splat(0.625f) ? near : far;
  return float_of(bits_of(t) | (bits_of(x) & splat_bits(INT32_MIN)));
}

}  // namespace
}  // namespace k3
