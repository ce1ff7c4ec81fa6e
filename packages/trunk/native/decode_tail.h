// Levels 3 and 2 of a chunk, the same in every kernel. Included after the kernel has defined
//
// size_t expand(codes, values, dictionary, others, out): exponents of one level to `out`, in whole groups;
// where the code says so the next of `others`. Gives how many of those it took.
#pragma once

#include "codec_format.h"

namespace k3::codec {
namespace {

// Leaves what level 1 takes its others from in scratch->level[0]. False when codes and counts contradict each
// other.
inline bool expand_tail(const Chunk& chunk, Scratch* scratch) {
  uint8_t* plain = scratch->level[2].bytes;
  uint8_t* third = scratch->level[1].bytes;
  uint8_t* second = scratch->level[0].bytes;
  __builtin_memcpy(plain, chunk.plain, chunk.counts[2]);
  const size_t plain_taken = expand(chunk.codes[2], chunk.counts[1], chunk.dictionary[2], plain, third);
  const size_t third_taken = expand(chunk.codes[1], chunk.counts[0], chunk.dictionary[1], third, second);
  return plain_taken == chunk.counts[2] && third_taken == chunk.counts[1];
}

}  // namespace
}  // namespace k3::codec
