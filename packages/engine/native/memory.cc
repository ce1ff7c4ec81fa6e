#include "memory.h"

#include <sys/mman.h>

namespace k3 {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

bool Area::allocate(size_t bytes, Pages pages) {
  clear();
  if (bytes == 0) return true;
  const bool huge = pages == Pages::huge && bytes >= kHugePage;
  const size_t mapped = huge ? round_up(bytes, kPage) + kHugePage : round_up(bytes, kPage);
  void* mapping =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return false;
  mapping_ = mapping;
  mapped_ = mapped;
  size_ = bytes;
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapping);
  data_ = reinterpret_cast<uint8_t*>(huge ? round_up(address, kHugePage) : address);
#ifdef MADV_HUGEPAGE
  // Only whole huge pages, so that the last, partial one does not cost more than was planned.
  if (huge) madvise(data_, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return true;
}

void Area::clear() {
  if (mapping_) munmap(mapping_, mapped_);
  mapping_ = nullptr;
  data_ = nullptr;
  mapped_ = size_ = 0;
}

}  // namespace k3
