#include "block_job.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "codec.h"

namespace k3::trunk {
namespace {

// Consecutive blocks of one tensor are read together, up to this many bytes.
constexpr size_t kItemBytes = size_t{4} << 20;
// All buffers together; what remains of 500 MB is for everything else.
constexpr size_t kBufferBytes = size_t{300} << 20;

}  // namespace

struct BlockJob::Item {
  uint32_t first = 0;
  uint32_t count = 0;
  size_t raw_bytes = 0;
  bool hole = false;
  uint8_t* raw = nullptr;  // the decoded blocks, one after another
};

struct BlockJob::Worker {
  AlignedBuffer source;
  AlignedBuffer stored;
  AlignedBuffer decoded;
};

BlockJob::BlockJob(JobPlan plan) : plan_(std::move(plan)) {
  results_.resize(plan_.raw_bytes.size());
  done_.assign(plan_.raw_bytes.size(), 0);
  next_ = turn_ = progress_.blocks = plan_.first_block;
  offset_ = plan_.first_offset;
  permits_ = std::max(1u, plan_.threads);
  for (const std::string& path : plan_.shards) {
    inputs_.push_back(std::make_unique<InputFile>());
    if (path.empty()) continue;  // a shard that no tensor is in
    if (const int error = inputs_.back()->open(path, plan_.direct)) {
      fail(JobError::What::kOpen, error, plan_.first_block, path);
      break;
    }
  }
  int error = 0;
  if (plan_.mode == JobMode::kWrite) error = output_.open(plan_.output, plan_.direct);
  if (plan_.mode == JobMode::kCheck) error = written_.open(plan_.output, plan_.direct);
  if (error != 0) fail(JobError::What::kOpen, error, plan_.first_block, plan_.output);
  if (stopped()) {
    progress_.finished = true;
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (unsigned n = worker_count(); n > 0; --n) {
    try {
      threads_.emplace_back([this] { run(); });
      ++running_;
    } catch (const std::system_error&) {
      break;  // fewer threads do it as well
    }
  }
  if (running_ == 0) {
    error_ = {JobError::What::kThread, EAGAIN, plan_.first_block, ""};
    progress_.finished = true;
  }
}

BlockJob::~BlockJob() {
  cancel();
  for (std::thread& thread : threads_) thread.join();
}

// Enough threads that several reads and several writes are under way while all permits to code are in use.
unsigned BlockJob::worker_count() const {
  size_t largest = kItemBytes;
  for (const uint32_t bytes : plan_.raw_bytes) largest = std::max<size_t>(largest, bytes);
  const size_t each = largest + codec::encode_bound(largest) + (plan_.mode == JobMode::kCheck ? largest : 0);
  const auto most = static_cast<unsigned>(std::max<size_t>(1, kBufferBytes / each));
  return std::min({most, 2 * plan_.threads + 4, 24u});
}

void BlockJob::cancel() {
  stopped_.store(true, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

JobProgress BlockJob::progress() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return progress_;
}

JobProgress BlockJob::wait(unsigned milliseconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [this] { return progress_.finished; });
  return progress_;
}

JobError BlockJob::error() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

uint32_t BlockJob::sync(int* error) {
  const uint32_t blocks = progress().blocks;
  *error = output_.is_open() ? output_.sync() : 0;
  return blocks;
}

bool BlockJob::direct_input() const {
  return std::all_of(inputs_.begin(), inputs_.end(),
                     [](const auto& in) { return !in->is_open() || in->direct(); });
}

bool BlockJob::direct_output() const {
  return plan_.mode == JobMode::kCheck ? written_.direct() : output_.direct();
}

void BlockJob::fail(JobError::What what, int error, uint32_t block, const std::string& path) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_.what == JobError::What::kNone) error_ = {what, error, block, path};
  }
  cancel();
}

void BlockJob::acquire() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return permits_ > 0; });
  --permits_;
}

void BlockJob::release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++permits_;
  changed_.notify_all();
}

void BlockJob::run() {
  {
    Worker worker;
    Item item;
    while (!stopped() && take(&item)) {
      if (!load(&item, &worker)) break;
      if (!(plan_.mode == JobMode::kCheck ? check_item(item, &worker) : write_item(item, &worker))) break;
      finish(item);
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--running_ == 0) {
    progress_.finished = true;
    changed_.notify_all();
  }
}

bool BlockJob::take(Item* item) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (next_ >= blocks()) return false;
  const auto only_segment = [this](uint32_t block) -> const SourceSegment* {
    const uint32_t s = plan_.segment_start[block];
    return plan_.segment_start[block + 1] == s + 1 ? &plan_.segments[s] : nullptr;
  };
  *item = Item{next_, 1, plan_.raw_bytes[next_], false, nullptr};
  const SourceSegment* segment = only_segment(next_);
  while (segment != nullptr && item->first + item->count < blocks()) {
    const uint32_t block = item->first + item->count;
    const SourceSegment* following = only_segment(block);
    const uint64_t row_bytes = plan_.tensors[segment->tensor].row_bytes;
    if (following == nullptr || following->tensor != segment->tensor ||
        following->first_row * row_bytes != segment->first_row * row_bytes + segment->bytes ||
        item->raw_bytes + plan_.raw_bytes[block] > kItemBytes) {
      break;
    }
    item->raw_bytes += plan_.raw_bytes[block];
    ++item->count;
    segment = following;
  }
  next_ += item->count;
  return true;
}

bool BlockJob::load(Item* item, Worker* worker) {
  const uint32_t begin = plan_.segment_start[item->first];
  const uint32_t end = plan_.segment_start[item->first + item->count];
  const bool gathered = item->count == 1 && end - begin > 1;
  if (gathered) {
    if (!worker->source.reserve(item->raw_bytes)) {
      fail(JobError::What::kMemory, ENOMEM, item->first, "");
      return false;
    }
    item->raw = worker->source.data();
    std::memset(item->raw, 0, item->raw_bytes);
  }
  for (uint32_t s = begin; s < end; ++s) {
    const SourceSegment& segment = plan_.segments[s];
    const SourceTensor& tensor = plan_.tensors[segment.tensor];
    const uint64_t offset = tensor.offset + uint64_t{segment.first_row} * tensor.row_bytes;
    InputFile& input = *inputs_[tensor.shard];
    int error = 0;
    if (gathered) {
      error = input.read_small(offset, segment.bytes, item->raw + segment.byte_offset);
    } else {
      item->hole = input.is_hole(offset, item->raw_bytes);
      if (!item->hole) error = input.read(offset, item->raw_bytes, &worker->source, &item->raw);
    }
    if (error != 0) {
      const bool short_file = error == InputFile::kShortFile;
      fail(short_file ? JobError::What::kShort : JobError::What::kRead, short_file ? 0 : error, item->first,
           plan_.shards[tensor.shard]);
      return false;
    }
    if (!gathered) break;  // one read for all of the item
  }
  return true;
}

bool BlockJob::all_bf16(uint32_t block) const {
  for (uint32_t s = plan_.segment_start[block]; s < plan_.segment_start[block + 1]; ++s) {
    if (!plan_.tensors[plan_.segments[s].tensor].bf16) return false;
  }
  return true;
}

uint32_t BlockJob::code(const uint8_t* raw, uint32_t raw_bytes, bool bf16, uint8_t* out,
                        BlockResult* result) const {
  result->crc_raw = codec::crc32(raw, raw_bytes);
  const size_t coded = bf16 ? codec::encode(raw, raw_bytes, out) : 0;
  result->codec = coded != 0 ? codec::kBf16 : codec::kRaw;
  if (coded == 0) std::memcpy(out, raw, raw_bytes);
  result->stored_bytes = coded != 0 ? static_cast<uint32_t>(coded) : raw_bytes;
  result->crc_stored = coded != 0 ? codec::crc32(out, coded) : result->crc_raw;
  const auto padded = static_cast<uint32_t>(align_up(result->stored_bytes));
  std::memset(out + result->stored_bytes, 0, padded - result->stored_bytes);
  return padded;
}

const BlockJob::ZeroBlock& BlockJob::zero_block(uint32_t raw_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = zeros_.find(raw_bytes);
  if (found != zeros_.end()) return found->second;
  ZeroBlock& zero = zeros_[raw_bytes];
  const std::vector<uint8_t> raw(raw_bytes);
  zero.pages.resize(codec::encode_bound(raw_bytes) + raw_bytes + kFileAlign);
  const bool bf16 = plan_.bf16 && raw_bytes % 2 == 0;
  zero.pages.resize(code(raw.data(), raw_bytes, bf16, zero.pages.data(), &zero.result));
  size_t used = zero.pages.size();
  while (used > 0 && zero.pages[used - 1] == 0) --used;
  zero.pages.resize(align_up(used));
  zero.pages.shrink_to_fit();
  return zero;
}

bool BlockJob::write_item(const Item& item, Worker* worker) {
  size_t room = 0;
  for (uint32_t i = 0; i < item.count; ++i) {
    const uint32_t raw = plan_.raw_bytes[item.first + i];
    room += std::max<size_t>(codec::encode_bound(raw), raw) + kFileAlign;
  }
  if (!worker->stored.reserve(room)) {
    fail(JobError::What::kMemory, ENOMEM, item.first, "");
    return false;
  }
  uint8_t* out = worker->stored.data();
  if (!item.hole) acquire();
  for (uint32_t i = 0, from = 0; i < item.count && !stopped(); ++i) {
    const uint32_t block = item.first + i;
    const uint32_t raw_bytes = plan_.raw_bytes[block];
    const bool bf16 = plan_.bf16 && all_bf16(block);
    if (item.hole && bf16 == plan_.bf16) {
      const ZeroBlock& zero = zero_block(raw_bytes);
      results_[block] = zero.result;
      const auto padded = static_cast<size_t>(align_up(zero.result.stored_bytes));
      if (!zero.pages.empty()) std::memcpy(out, zero.pages.data(), zero.pages.size());
      std::memset(out + zero.pages.size(), 0, padded - zero.pages.size());
      out += padded;
    } else {
      std::vector<uint8_t> zeros;
      if (item.hole) zeros.resize(raw_bytes);
      out += code(item.hole ? zeros.data() : item.raw + from, raw_bytes, bf16, out, &results_[block]);
    }
    from += raw_bytes;
  }
  if (!item.hole) release();

  uint64_t place;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == item.first || stopped(); });
    if (stopped()) return false;
    place = offset_;
    for (uint32_t i = 0; i < item.count; ++i) {
      BlockResult& result = results_[item.first + i];
      result.offset = offset_;
      offset_ += align_up(result.stored_bytes);
    }
    turn_ = item.first + item.count;
    changed_.notify_all();
  }
  if (plan_.mode == JobMode::kMeasure) return true;
  if (const int error = output_.write_pages(place, worker->stored.data(),
                                            static_cast<size_t>(out - worker->stored.data()))) {
    fail(JobError::What::kWrite, error, item.first, plan_.output);
    return false;
  }
  return true;
}

bool BlockJob::check_item(const Item& item, Worker* worker) {
  size_t from = 0;
  for (uint32_t i = 0; i < item.count && !stopped(); ++i) {
    const uint32_t block = item.first + i;
    const uint32_t raw_bytes = plan_.raw_bytes[block];
    const BlockResult& expected = plan_.expected[block];
    results_[block] = expected;
    if (item.hole && expected.codec == codec::kRaw &&
        written_.is_hole(expected.offset, expected.stored_bytes)) {
      const BlockResult& zero = zero_block(raw_bytes).result;
      if (!plan_.bf16 && (zero.crc_raw != expected.crc_raw || zero.crc_stored != expected.crc_stored)) {
        fail(JobError::What::kStoredCrc, 0, block, plan_.output);
        return false;
      }
      if (!plan_.bf16) continue;
    }
    uint8_t* stored = nullptr;
    const int error = written_.read(expected.offset, expected.stored_bytes, &worker->stored, &stored);
    if (error != 0 || !worker->decoded.reserve(raw_bytes)) {
      fail(error == InputFile::kShortFile ? JobError::What::kShort : JobError::What::kRead,
           std::max(error, 0), block, plan_.output);
      return false;
    }
    acquire();
    JobError::What fault = JobError::What::kNone;
    const uint8_t* decoded = stored;
    codec::BlockView view;
    if (codec::crc32(stored, expected.stored_bytes) != expected.crc_stored) {
      fault = JobError::What::kStoredCrc;
    } else if (expected.codec == codec::kBf16) {
      decoded = worker->decoded.data();
      if (!codec::parse_block(stored, expected.stored_bytes, raw_bytes, &view) ||
          !codec::decode(view, 0, view.chunks, reinterpret_cast<uint16_t*>(worker->decoded.data()))) {
        fault = JobError::What::kDecode;
      }
    }
    if (fault == JobError::What::kNone) {
      const std::vector<uint8_t> zeros(item.hole ? raw_bytes : 0);
      const uint8_t* raw = item.hole ? zeros.data() : item.raw + from;
      if (std::memcmp(raw, decoded, raw_bytes) != 0 || codec::crc32(decoded, raw_bytes) != expected.crc_raw) {
        fault = JobError::What::kDiffers;
      }
    }
    release();
    if (fault != JobError::What::kNone) {
      fail(fault, 0, block, plan_.output);
      return false;
    }
    from += raw_bytes;
  }
  return !stopped();
}

void BlockJob::finish(const Item& item) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (uint32_t i = 0; i < item.count; ++i) {
    done_[item.first + i] = 1;
    progress_.raw_bytes += plan_.raw_bytes[item.first + i];
    progress_.stored_bytes += results_[item.first + i].stored_bytes;
  }
  if (item.hole) progress_.hole_bytes += item.raw_bytes;
  while (progress_.blocks < blocks() && done_[progress_.blocks] != 0) ++progress_.blocks;
}

}  // namespace k3::trunk
