#include "addon_job.h"

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "block_job.h"
#include "codec.h"

namespace k3::trunk {
namespace {

// A typed array property as a vector; `ok` turns false when it is missing or of another type.
template <typename T, napi_typedarray_type kType>
std::vector<T> numbers(const Napi::Object& from, const char* name, bool* ok) {
  const Napi::Value value = from.Get(name);
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != kType) {
    *ok = false;
    return {};
  }
  const auto array = value.As<Napi::TypedArrayOf<T>>();
  return std::vector<T>(array.Data(), array.Data() + array.ElementLength());
}

std::vector<uint32_t> u32(const Napi::Object& from, const char* name, bool* ok) {
  return numbers<uint32_t, napi_uint32_array>(from, name, ok);
}

std::vector<uint64_t> offsets(const Napi::Object& from, const char* name, bool* ok) {
  std::vector<uint64_t> out;
  for (const double v : numbers<double, napi_float64_array>(from, name, ok)) {
    if (!(v >= 0 && v <= 4503599627370496.0)) *ok = false;
    out.push_back(*ok ? static_cast<uint64_t>(v) : 0);
  }
  return out;
}

bool read_tensors(const Napi::Object& o, JobPlan* plan) {
  bool ok = true;
  const auto shard = u32(o, "tensorShard", &ok), row_bytes = u32(o, "tensorRowBytes", &ok);
  const auto offset = offsets(o, "tensorOffset", &ok);
  const auto bf16 = numbers<uint8_t, napi_uint8_array>(o, "tensorBf16", &ok);
  const size_t n = shard.size();
  if (!ok || row_bytes.size() != n || offset.size() != n || bf16.size() != n) return false;
  for (size_t t = 0; t < n; ++t) {
    if (shard[t] >= plan->shards.size() || plan->shards[shard[t]].empty() || row_bytes[t] == 0) return false;
    plan->tensors.push_back({shard[t], offset[t], row_bytes[t], bf16[t] != 0});
  }
  return true;
}

bool read_blocks(const Napi::Object& o, JobPlan* plan) {
  bool ok = true;
  plan->raw_bytes = u32(o, "rawBytes", &ok);
  plan->segment_start = u32(o, "segmentStart", &ok);
  const auto tensor = u32(o, "segmentTensor", &ok), row = u32(o, "segmentFirstRow", &ok);
  const auto at = u32(o, "segmentByteOffset", &ok), bytes = u32(o, "segmentBytes", &ok);
  const size_t n = tensor.size();
  if (!ok || row.size() != n || at.size() != n || bytes.size() != n) return false;
  if (plan->segment_start.size() != plan->raw_bytes.size() + 1 || plan->segment_start[0] != 0) return false;
  if (plan->segment_start.back() != n) return false;
  for (size_t s = 0; s < n; ++s) {
    if (tensor[s] >= plan->tensors.size()) return false;
    plan->segments.push_back({tensor[s], row[s], at[s], bytes[s]});
  }
  for (size_t b = 0; b < plan->raw_bytes.size(); ++b) {
    const uint32_t begin = plan->segment_start[b], end = plan->segment_start[b + 1];
    const uint32_t raw = plan->raw_bytes[b];
    if (begin >= end || end > n || raw == 0 || raw > codec::kMaxRawBytes) return false;
    for (uint32_t s = begin; s < end; ++s) {
      if (uint64_t{at[s]} + bytes[s] > raw) return false;
    }
    if (end == begin + 1 && (at[begin] != 0 || bytes[begin] != raw)) return false;
  }
  return true;
}

bool read_expected(const Napi::Object& o, JobPlan* plan) {
  bool ok = true;
  const auto offset = offsets(o, "expectedOffset", &ok);
  const auto stored = u32(o, "expectedStored", &ok), crc_stored = u32(o, "expectedCrcStored", &ok);
  const auto crc_raw = u32(o, "expectedCrcRaw", &ok);
  const auto codec = numbers<uint8_t, napi_uint8_array>(o, "expectedCodec", &ok);
  const size_t n = plan->raw_bytes.size();
  if (!ok || offset.size() != n || stored.size() != n || crc_stored.size() != n || crc_raw.size() != n ||
      codec.size() != n) {
    return false;
  }
  for (size_t b = 0; b < n; ++b) {
    const uint32_t raw = plan->raw_bytes[b];
    if (codec[b] == codec::kRaw ? stored[b] != raw : codec[b] != codec::kBf16 || stored[b] >= raw)
      return false;
    plan->expected.push_back({offset[b], stored[b], crc_stored[b], crc_raw[b], codec[b]});
  }
  return true;
}

bool read_plan(const Napi::Object& o, JobPlan* plan) {
  const Napi::Value shards = o.Get("shards");
  if (!shards.IsArray()) return false;
  const auto list = shards.As<Napi::Array>();
  for (uint32_t i = 0; i < list.Length(); ++i) {
    const Napi::Value path = list.Get(i);
    if (!path.IsString()) return false;
    plan->shards.push_back(path.As<Napi::String>().Utf8Value());
  }
  const std::string mode = o.Get("mode").ToString().Utf8Value();
  if (mode != "write" && mode != "measure" && mode != "check") return false;
  plan->mode = mode == "write" ? JobMode::kWrite : mode == "check" ? JobMode::kCheck : JobMode::kMeasure;
  plan->output = o.Get("output").ToString().Utf8Value();
  plan->bf16 = o.Get("bf16").ToBoolean().Value();
  plan->direct = o.Get("direct").ToBoolean().Value();
  plan->threads = std::max(1u, std::min(256u, o.Get("threads").ToNumber().Uint32Value()));
  plan->first_block = o.Get("firstBlock").ToNumber().Uint32Value();
  const double first_offset = o.Get("firstOffset").ToNumber().DoubleValue();
  if (!(first_offset >= 0 && first_offset <= 4503599627370496.0)) return false;
  plan->first_offset = static_cast<uint64_t>(first_offset);
  if (!read_tensors(o, plan) || !read_blocks(o, plan)) return false;
  if (plan->first_block > plan->raw_bytes.size() || plan->first_offset % kFileAlign != 0) return false;
  return plan->mode != JobMode::kCheck || read_expected(o, plan);
}

Napi::Object to_object(Napi::Env env, const JobProgress& p) {
  auto out = Napi::Object::New(env);
  out.Set("blocks", p.blocks);
  out.Set("rawBytes", static_cast<double>(p.raw_bytes));
  out.Set("storedBytes", static_cast<double>(p.stored_bytes));
  out.Set("holeBytes", static_cast<double>(p.hole_bytes));
  out.Set("finished", p.finished);
  return out;
}

// Runs work on a thread of libuv's pool and resolves with what `result` makes of it on the JavaScript thread.
// It keeps the job alive meanwhile.
class JobWorker : public Napi::AsyncWorker {
 public:
  using Work = std::function<void()>;
  using Result = std::function<Napi::Value(Napi::Env)>;
  JobWorker(Napi::Env env, std::shared_ptr<BlockJob> job, Work work, Result result)
      : AsyncWorker(env),
        job_(std::move(job)),
        work_(std::move(work)),
        result_(std::move(result)),
        deferred_(Napi::Promise::Deferred::New(env)) {}
  Napi::Promise promise() const { return deferred_.Promise(); }
  void Execute() override { work_(); }
  void OnOK() override { deferred_.Resolve(result_(Env())); }
  void OnError(const Napi::Error& error) override { deferred_.Reject(error.Value()); }

 private:
  std::shared_ptr<BlockJob> job_;
  Work work_;
  Result result_;
  Napi::Promise::Deferred deferred_;
};

Napi::Value start(Napi::Env env, std::shared_ptr<BlockJob> job, JobWorker::Work work,
                  JobWorker::Result result) {
  auto* worker = new JobWorker(env, std::move(job), std::move(work), std::move(result));
  worker->Queue();
  return worker->promise();
}

class BlockJobWrap : public Napi::ObjectWrap<BlockJobWrap> {
 public:
  explicit BlockJobWrap(const Napi::CallbackInfo& info) : ObjectWrap(info) {
    JobPlan plan;
    if (!info[0].IsObject() || !read_plan(info[0].As<Napi::Object>(), &plan)) {
      Napi::TypeError::New(info.Env(), "the plan of a BlockJob contradicts itself")
          .ThrowAsJavaScriptException();
      return;
    }
    job_ = std::make_shared<BlockJob>(std::move(plan));
  }

  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "BlockJob",
        {InstanceMethod("wait", &BlockJobWrap::wait), InstanceMethod("sync", &BlockJobWrap::sync),
         InstanceMethod("cancel", &BlockJobWrap::cancel), InstanceMethod("error", &BlockJobWrap::error),
         InstanceMethod("results", &BlockJobWrap::results), InstanceMethod("direct", &BlockJobWrap::direct),
         InstanceMethod("close", &BlockJobWrap::close)});
  }

 private:
  // False, with an exception pending, after close.
  bool usable(Napi::Env env) const {
    if (job_) return true;
    Napi::Error::New(env, "the job is closed").ThrowAsJavaScriptException();
    return false;
  }

  // close(): stops the job, waits for its threads and closes its files. All else throws afterwards.
  Napi::Value close(const Napi::CallbackInfo& info) {
    job_.reset();
    return info.Env().Undefined();
  }

  // wait(ms): progress, when the job has finished or the time is over.
  Napi::Value wait(const Napi::CallbackInfo& info) {
    if (!usable(info.Env())) return info.Env().Undefined();
    const uint32_t ms = info[0].ToNumber().Uint32Value();
    auto progress = std::make_shared<JobProgress>();
    return start(
        info.Env(), job_, [job = job_, progress, ms] { *progress = job->wait(ms); },
        [progress](Napi::Env env) { return to_object(env, *progress); });
  }

  // sync(): {blocks, errno}: all blocks before `blocks` are durable.
  Napi::Value sync(const Napi::CallbackInfo& info) {
    if (!usable(info.Env())) return info.Env().Undefined();
    struct Outcome {
      uint32_t blocks = 0;
      int error = 0;
    };
    auto outcome = std::make_shared<Outcome>();
    return start(
        info.Env(), job_, [job = job_, outcome] { outcome->blocks = job->sync(&outcome->error); },
        [outcome](Napi::Env env) {
          auto out = Napi::Object::New(env);
          out.Set("blocks", outcome->blocks);
          out.Set("errno", outcome->error);
          return out;
        });
  }

  Napi::Value cancel(const Napi::CallbackInfo& info) {
    if (!usable(info.Env())) return info.Env().Undefined();
    job_->cancel();
    return info.Env().Undefined();
  }

  // error(): null, or what stopped the job.
  Napi::Value error(const Napi::CallbackInfo& info) {
    if (!usable(info.Env())) return info.Env().Undefined();
    static constexpr const char* kNames[] = {"none",   "open",   "read",       "short",  "write",  "sync",
                                             "memory", "thread", "stored-crc", "decode", "differs"};
    const JobError error = job_->error();
    if (error.what == JobError::What::kNone) return info.Env().Null();
    auto out = Napi::Object::New(info.Env());
    out.Set("what", kNames[static_cast<size_t>(error.what)]);
    out.Set("errno", error.error);
    out.Set("message", error.error != 0 ? std::strerror(error.error) : "");
    out.Set("block", error.block);
    out.Set("path", error.path);
    return out;
  }

  // results(from, to): 16 bytes per block: stored bytes, CRC of stored, CRC of raw, codec (u32 each,
  // little-endian hosts only). The blocks must be done.
  Napi::Value results(const Napi::CallbackInfo& info) {
    if (!usable(info.Env())) return info.Env().Undefined();
    const uint32_t from = info[0].ToNumber().Uint32Value(), to = info[1].ToNumber().Uint32Value();
    if (from > to || to > job_->progress().blocks) {
      Napi::RangeError::New(info.Env(), "these blocks are not done").ThrowAsJavaScriptException();
      return info.Env().Undefined();
    }
    auto out = Napi::Uint32Array::New(info.Env(), size_t{4} * (to - from));
    for (uint32_t b = from; b < to; ++b) {
      const BlockResult& r = job_->result(b);
      const size_t at = size_t{4} * (b - from);
      out[at] = r.stored_bytes;
      out[at + 1] = r.crc_stored;
      out[at + 2] = r.crc_raw;
      out[at + 3] = r.codec;
    }
    return out;
  }

  Napi::Value direct(const Napi::CallbackInfo& info) {
    if (!usable(info.Env())) return info.Env().Undefined();
    auto out = Napi::Object::New(info.Env());
    out.Set("input", job_->direct_input());
    out.Set("output", job_->direct_output());
    return out;
  }

  std::shared_ptr<BlockJob> job_;
};

}  // namespace

Napi::Function define_block_job(Napi::Env env) {
  return BlockJobWrap::define(env);
}

}  // namespace k3::trunk
