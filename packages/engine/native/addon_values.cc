#include "addon_values.h"

#include <cstring>

namespace k3 {

namespace {

template <typename Array, typename T>
Array to_array(Napi::Env env, const std::vector<T>& values) {
  Array array = Array::New(env, values.size());
  if (!values.empty()) std::memcpy(array.Data(), values.data(), values.size() * sizeof(T));
  return array;
}

}  // namespace

Napi::Object to_value(Napi::Env env, const PassResult& result) {
  Napi::Object out = Napi::Object::New(env);
  out.Set("logits", to_array<Napi::Float32Array>(env, result.logits));
  out.Set("experts", to_array<Napi::Uint16Array>(env, result.experts));
  out.Set("layerMax", to_array<Napi::Float32Array>(env, result.layer_max));
  return out;
}

Napi::Object to_value(Napi::Env env, const EngineSizes& sizes, const Weights& weights) {
  Napi::Object out = Napi::Object::New(env);
  const auto set = [&](const char* name, uint64_t n) { out.Set(name, static_cast<double>(n)); };
  set("activations", sizes.activations), set("activationsPerToken", sizes.activations_per_token);
  set("perWorker", sizes.per_worker), set("ringSlot", sizes.ring_slot), set("expertSlot", sizes.expert_slot);
  set("stateFixed", sizes.state_fixed), set("statePosition", sizes.state_position),
      set("tables", sizes.tables);
  Napi::Uint32Array stored = Napi::Uint32Array::New(env, weights.blocks.size());
  Napi::Uint32Array pinned = Napi::Uint32Array::New(env, weights.blocks.size());
  for (size_t b = 0; b < weights.blocks.size(); ++b) {
    stored[b] = weights.blocks[b].stored;
    pinned[b] = static_cast<uint32_t>(round_up(weights.buffer_bytes(weights.blocks[b]), kPage));
  }
  out.Set("storedBytes", stored);
  out.Set("blockBytes", pinned);
  return out;
}

Napi::Object to_value(Napi::Env env, const ExpertCensus& census) {
  Napi::Object out = Napi::Object::New(env);
  out.Set("tokens", static_cast<double>(census.tokens));
  out.Set("uses", to_array<Napi::Uint32Array>(env, census.uses));
  return out;
}

Napi::Object to_value(Napi::Env env, const Engine& engine) {
  Napi::Object out = Napi::Object::New(env);
  const Counters& c = engine.step.counters;
  const auto set = [&](const char* name, uint64_t n) { out.Set(name, static_cast<double>(n)); };
  set("layer", c.layer), set("trunkBytes", c.trunk_bytes), set("headBytes", c.head_bytes);
  set("expertBytes", c.expert_bytes), set("embedBytes", c.embed_bytes), set("waitNs", c.wait_ns);
  set("retries", c.retries), set("expertsRequested", c.experts_requested);
  set("expertsResident", c.experts_resident);
  set("pinnedBytes", engine.pinned_bytes()), set("pinnedResident", engine.pinned_resident());
  set("expertsCached", engine.experts_resident()), set("bufferedFiles", engine.buffered_files());
  out.Set("fastReads", engine.reads_are_fast());
  return out;
}

}  // namespace k3
