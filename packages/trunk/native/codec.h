// The lossless bf16 codec of the trunk, and the CRC-32 that guards its blocks. docs/trunk-format.md has the
// format.
//
// A block is coded as a whole and decoded in chunks of kChunkValues values, so that a worker can decode just
// the tile that it multiplies next. All instruction sets give the same bytes. Nothing here allocates, throws
// or keeps state (but for the choice of the instruction set); every function may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace k3::codec {

// How a stored block is coded: the `codec` byte of the block table.
inline constexpr uint8_t kRaw = 0;   // stored == decoded
inline constexpr uint8_t kBf16 = 1;  // this codec

// Values that are decoded at once at the least.
inline constexpr size_t kChunkValues = 4096;
inline constexpr size_t kChunkBytes = kChunkValues * 2;

// A coded block ends with this many zero bytes, so that vector loads may overshoot within it.
inline constexpr size_t kTailPad = 64;

// Levels of the exponent code: each has a dictionary of three exponents and passes the others on to the next.
inline constexpr size_t kLevels = 3;

// Larger decoded blocks do not exist (layout.ts has the same limit).
inline constexpr size_t kMaxRawBytes = size_t{1} << 26;
inline constexpr size_t kMaxChunks = kMaxRawBytes / kChunkBytes;

// A checked coded block. It borrows the stored bytes: they must outlive it and stay as they are.
struct BlockView {
  size_t values = 0;                       // bf16 values of the decoded block: raw_bytes / 2
  size_t chunks = 0;                       // ceil(values / kChunkValues); the last one may be shorter
  const uint8_t* sign_mantissa = nullptr;  // one byte per value: mantissa << 1 | sign
  const uint8_t* codes = nullptr;          // 16 bytes per 64 values: the first level's codes
  const uint8_t* directory = nullptr;      // 16 bytes per chunk: where its tail is, and its counts
  const uint8_t* tails = nullptr;          // per chunk: codes of levels 2 and 3, then plain exponents
  uint8_t dictionary[kLevels][4] = {};     // per level: three exponents; the fourth is not used
};

// Checks every length, offset and count of a coded block of `stored_bytes` that must decode to `raw_bytes`.
// False when it is damaged. After true, decode can neither read nor write out of bounds, whatever the
// remaining bytes are.
bool parse_block(const uint8_t* stored, size_t stored_bytes, size_t raw_bytes, BlockView* view);

// Decodes chunks first_chunk .. first_chunk + chunk_count - 1 to out, which gets exactly their values:
// kChunkValues each, fewer for the last chunk of the block. `out` needs no alignment (64 bytes is best).
// False when the codes of a chunk contradict its counts (a damaged block); out is then filled with something
// harmless.
bool decode(const BlockView& view, size_t first_chunk, size_t chunk_count, uint16_t* out);

// The most bytes that encode can give for a block of raw_bytes, and thus what its output buffer must hold.
size_t encode_bound(size_t raw_bytes);

// Codes a block of raw_bytes / 2 bf16 values (raw_bytes is even, `raw` needs no alignment) to `out`, which
// has encode_bound(raw_bytes) bytes. Returns the stored size, or 0 when it would not be smaller than
// raw_bytes (store the block raw then). Deterministic: the same on every machine.
size_t encode(const uint8_t* raw, size_t raw_bytes, uint8_t* out);

// CRC-32 of zlib (reflected 0x04C11DB7); `seed` is the checksum of what came before.
uint32_t crc32(const void* data, size_t bytes, uint32_t seed = 0);

// The instruction set in use: "scalar", "avx2", "avx512" (F, BW, VL, VBMI, VBMI2) or "neon", the best that
// the processor has, or the one that the environment variable K3_ISA names at first use.
const char* isa();

// True when this build and this processor can run it.
bool isa_available(const char* name);

// Switches to another instruction set, for tests and benchmarks; false when it is not available. Calls of
// decode that are running finish with the one they began with.
bool set_isa(const char* name);

}  // namespace k3::codec
