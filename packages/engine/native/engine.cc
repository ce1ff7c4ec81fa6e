#include "engine.h"

namespace k3 {

EngineSizes measure(const Weights& weights, const ExpertTable& experts) {
  EngineSizes sizes;
  Activations activations;
  // The size is the largest of several sums that grow with the tokens, so a chord lies above it everywhere
  // between.
  constexpr uint32_t kFar = 1025;
  sizes.activations = round_up(activations.carve(nullptr, weights, 1), kPage);
  sizes.activations_per_token =
      (activations.carve(nullptr, weights, kFar) - sizes.activations) / (kFar - 1) + 4 * kPage;
  sizes.per_worker = worker_buffer_bytes(weights, experts) +
                     round_up(TrunkMatmul::tile_bytes(weights), kPage) +
                     round_up(worker_floats(weights.config) * sizeof(float), kPage);
  sizes.ring_slot = round_up(weights.block_buffer_bytes(), kPage);
  sizes.expert_slot = experts.layers > 0 ? ExpertStore::slot_bytes(experts) : 0;
  sizes.state_fixed = SessionState::fixed_bytes(weights.config);
  sizes.state_position = SessionState::position_bytes(weights.config);
  sizes.tables = weights.blocks.size() * (sizeof(Block) + 24) + weights.segments.size() * sizeof(Segment) +
                 weights.pieces.size() * sizeof(Piece) +
                 experts.offsets.size() * (sizeof(double) + sizeof(uint16_t)) +
                 size_t{experts.layers} * experts.experts * 44;
  return sizes;
}

Engine::Engine(EngineModel model, EngineOptions options)
    : model_(std::move(model)), options_(std::move(options)) {}

Engine::~Engine() {
  close();
}

Error Engine::open() {
  files_ = std::make_unique<FileReader>();
  if (Error error = files_->open(model_.files, options_.direct, options_.pace)) return error;
  pool_ = std::make_unique<ThreadPool>(options_.threads);
  if (pool_->threads() < options_.threads) return no_threads("compute");
  stream_ = std::make_unique<BlockStream>(model_.weights, *files_, step);
  if (Error error = stream_->open(options_.stream)) return error;
  store_ = std::make_unique<ExpertStore>(model_.experts, *files_, step);
  if (Error error = store_->open(options_.store)) return error;
  forward_ = std::make_unique<Forward>(model_.weights, model_.experts, model_.embedding, *files_, *stream_,
                                       *store_, *pool_, step, *options_.kernels);
  if (Error error = forward_->allocate(options_.chunk)) return error;
  return add_thread(&threads_, [this] { work(); }) ? Error{} : no_threads("run passes");
}

void Engine::close() {
  if (closed_) return;
  closed_ = true;
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  step.interrupt();
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  free_memory();
}

void Engine::free_memory() {
  forward_.reset();
  store_.reset();
  stream_.reset();
  pool_.reset();
  files_.reset();
}

void Engine::post(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void Engine::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return quit_ || !jobs_.empty(); });
    // Jobs that are still queued run to their end: the step is stopped, so they fail at once and say so.
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

Error Engine::forward(std::span<const int32_t> ids, SessionState& state, const PassOptions& options,
                      PassResult* result) {
  if (step.stopped()) return step.error();
  if (!forward_) return {"E_USAGE", "the model is closed", ""};
  return forward_->run(ids, state, options, result);
}

}  // namespace k3
