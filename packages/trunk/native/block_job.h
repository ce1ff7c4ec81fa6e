// Copies the blocks of a layout from the shards of a checkpoint into a trunk's data file, or compares the
// two, with threads of its own. Each thread takes the next few blocks, reads them, codes them, waits for its
// turn to be given a place in the file (places depend on the sizes before), and writes. So reading, coding
// and writing overlap, and the file is the same however many threads there are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "file_io.h"

namespace k3::trunk {

struct SourceTensor {
  uint32_t shard;
  uint64_t offset;  // of the first byte in the shard
  uint32_t row_bytes;
  bool bf16;
};

struct SourceSegment {
  uint32_t tensor;
  uint32_t first_row;
  uint32_t byte_offset;  // in the decoded block
  uint32_t bytes;
};

// What a block became.
struct BlockResult {
  uint64_t offset = 0;
  uint32_t stored_bytes = 0;
  uint32_t crc_stored = 0;
  uint32_t crc_raw = 0;
  uint8_t codec = 0;
};

enum class JobMode : uint8_t {
  kWrite,    // code the blocks and write them
  kMeasure,  // code them, write nothing
  kCheck     // read what was written, decode it, compare it with the source
};

struct JobPlan {
  std::vector<std::string> shards;
  std::vector<SourceTensor> tensors;
  std::vector<SourceSegment> segments;
  std::vector<uint32_t> segment_start;  // blocks + 1
  std::vector<uint32_t> raw_bytes;      // per block
  std::string output;
  JobMode mode = JobMode::kWrite;
  bool bf16 = false;     // the codec
  bool direct = true;    // O_DIRECT where it works
  unsigned threads = 1;  // that code or decode at the same time
  uint32_t first_block = 0;
  uint64_t first_offset = 0;
  std::vector<BlockResult> expected;  // kCheck: the block table
};

// Why a job stopped before its end.
struct JobError {
  enum class What : uint8_t {
    kNone,
    kOpen,
    kRead,
    kShort,
    kWrite,
    kSync,
    kMemory,
    kThread,
    kStoredCrc,
    kDecode,
    kDiffers
  };
  What what = What::kNone;
  int error = 0;  // errno
  uint32_t block = 0;
  std::string path;
};

struct JobProgress {
  uint32_t blocks = 0;  // all blocks before this one are done
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t hole_bytes = 0;  // of raw_bytes: never read, because the source has holes there
  bool finished = false;    // the threads have ended, well or not
};

class BlockJob {
 public:
  explicit BlockJob(JobPlan plan);
  ~BlockJob();
  BlockJob(const BlockJob&) = delete;
  BlockJob& operator=(const BlockJob&) = delete;

  void cancel();
  // Returns when the job has finished, or after so many milliseconds.
  JobProgress wait(unsigned milliseconds);
  JobProgress progress();
  // Makes durable what is written: the blocks before the number returned are on the disk. 0 or errno in
  // *error.
  uint32_t sync(int* error);
  JobError error();
  const BlockResult& result(uint32_t block) const { return results_[block]; }
  uint32_t blocks() const { return static_cast<uint32_t>(plan_.raw_bytes.size()); }
  bool direct_input() const;
  bool direct_output() const;

 private:
  struct Item;
  struct Worker;
  // What a block of zeros becomes: the same for all of a size, so holes need be neither read nor coded.
  struct ZeroBlock {
    BlockResult result;
    std::vector<uint8_t> pages;  // up to its last page that is not zero
  };

  unsigned worker_count() const;
  void run();
  bool take(Item* item);
  bool load(Item* item, Worker* worker);
  bool write_item(const Item& item, Worker* worker);
  bool check_item(const Item& item, Worker* worker);
  const ZeroBlock& zero_block(uint32_t raw_bytes);
  uint32_t code(const uint8_t* raw, uint32_t raw_bytes, bool bf16, uint8_t* out, BlockResult* result) const;
  bool all_bf16(uint32_t block) const;
  void finish(const Item& item);
  void fail(JobError::What what, int error, uint32_t block, const std::string& path);
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  void acquire();
  void release();

  const JobPlan plan_;
  std::vector<std::unique_ptr<InputFile>> inputs_;
  OutputFile output_;
  InputFile written_;
  std::vector<BlockResult> results_;

  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t next_ = 0;     // the next block to be taken
  uint32_t turn_ = 0;     // the next block to be given a place
  uint64_t offset_ = 0;   // that place
  unsigned permits_ = 1;  // how many more threads may code
  unsigned running_ = 0;
  std::vector<uint8_t> done_;
  JobProgress progress_;
  JobError error_;
  std::unordered_map<uint32_t, ZeroBlock> zeros_;
  std::vector<std::thread> threads_;
};

}  // namespace k3::trunk
