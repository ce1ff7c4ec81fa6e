#include "expert_table.h"

#include <string>

namespace k3 {

uint64_t ExpertTable::bytes() const {
  uint64_t sum = 0;
  for (uint64_t part : part_bytes) sum += part;
  return sum;
}

Error ExpertTable::check(const std::vector<FileSpec>& specs) const {
  const size_t count = size_t{layers} * experts * parts;
  if (parts == 0 || parts > kMaxParts || part_bytes.size() != parts || offsets.size() != count ||
      files.size() != count) {
    return {"E_DEFECT", "the expert table has a wrong size", ""};
  }
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bytes = part_bytes[i % parts];
    if (!(offsets[i] >= 0) || offsets[i] > 9e15 || files[i] >= specs.size() || bytes > specs[files[i]].size ||
        static_cast<uint64_t>(offsets[i]) > specs[files[i]].size - bytes) {
      return {"E_DEFECT", "a part of expert " + std::to_string(i / parts % experts) + " leaves its file", ""};
    }
  }
  return {};
}

}  // namespace k3
