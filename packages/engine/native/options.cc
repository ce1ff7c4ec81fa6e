#include "options.h"

#include <cmath>

namespace k3 {

namespace {

// Reads fields and remembers the first one that is not what it must be.
class Fields {
 public:
  Fields(const Napi::Object& object, Error* error) : object_(object), error_(error) {}

  template <typename T>
  void number(const char* name, T* out, double most = 4294967295.0) {
    const Napi::Value value = object_.Get(name);
    const double d = value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : NAN;
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(d)) return wrong(name);
    } else {
      if (!(d >= 0 && d <= most) || d != std::floor(d)) return wrong(name);
    }
    *out = static_cast<T>(d);
  }
  void wide(const char* name, uint64_t* out) {
    const Napi::Value value = object_.Get(name);
    bool whole = false;
    if (value.IsBigInt()) *out = value.As<Napi::BigInt>().Uint64Value(&whole);
    if (!whole) wrong(name);
  }
  void wide(const char* name, int64_t* out) {
    const Napi::Value value = object_.Get(name);
    bool whole = false;
    if (value.IsBigInt()) *out = value.As<Napi::BigInt>().Int64Value(&whole);
    if (!whole) wrong(name);
  }
  void flag(const char* name, bool* out) {
    const Napi::Value value = object_.Get(name);
    if (!value.IsBoolean()) return wrong(name);
    *out = value.As<Napi::Boolean>().Value();
  }
  // A typed array with this element type, copied.
  template <typename From, typename To>
  void array(const char* name, napi_typedarray_type type, std::vector<To>* out) {
    const Napi::Value value = object_.Get(name);
    if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != type) return wrong(name);
    const auto typed = value.As<Napi::TypedArrayOf<From>>();
    out->assign(typed.Data(), typed.Data() + typed.ElementLength());
  }
  // The same, not copied: it lies in the array's memory.
  template <typename T>
  void view(const char* name, napi_typedarray_type type, std::span<const T>* out) {
    const Napi::Value value = object_.Get(name);
    if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != type) return wrong(name);
    const auto typed = value.As<Napi::TypedArrayOf<T>>();
    *out = {typed.Data(), typed.ElementLength()};
  }
  Napi::Object object(const char* name) {
    const Napi::Value value = object_.Get(name);
    if (!value.IsObject()) {
      wrong(name);
      return Napi::Object::New(object_.Env());
    }
    return value.As<Napi::Object>();
  }
  void wrong(const char* name) {
    if (!*error_) *error_ = {"E_DEFECT", std::string("the engine was given no valid ") + name, ""};
  }

 private:
  Napi::Object object_;
  Error* error_;
};

void read_config(const Napi::Object& object, Config* c, Error* error) {
  Fields f(object, error);
  constexpr double kWide = 1 << 24;  // no width of a model is larger; keeps products of two within 64 bits
  f.number("hidden", &c->hidden, kWide);
  f.number("layers", &c->layers, 1 << 16);
  f.number("vocab", &c->vocab, kWide);
  f.number("rmsNormEps", &c->rms_norm_eps);
  f.number("attnResBlockSize", &c->attn_res_block_size, 1 << 16);
  f.number("situBeta", &c->situ_beta);
  f.number("situLinearBeta", &c->situ_linear_beta);
  f.number("intermediate", &c->intermediate, kWide);
  f.number("experts", &c->experts, 65535);
  f.number("expertsPerToken", &c->experts_per_token, 65535);
  f.number("sharedInner", &c->shared_inner, kWide);
  f.number("moeInner", &c->moe_inner, kWide);
  f.number("latent", &c->latent, kWide);
  f.flag("latentNorm", &c->latent_norm);
  f.flag("renormalize", &c->renormalize);
  f.number("routedScale", &c->routed_scale);
  f.number("mlaHeads", &c->mla.heads, kWide);
  f.number("qLora", &c->mla.q_lora, kWide);
  f.number("kvLora", &c->mla.kv_lora, kWide);
  f.number("nope", &c->mla.nope, kWide);
  f.number("rope", &c->mla.rope, kWide);
  f.number("vDim", &c->mla.v_dim, kWide);
  f.flag("mlaGate", &c->mla.gate);
  f.number("kdaHeads", &c->kda.heads, kWide);
  f.number("kdaDim", &c->kda.dim, 65536);
  f.number("kdaConv", &c->kda.conv, 65536);
  f.number("gateLowerBound", &c->kda.gate_lower_bound);
  f.array<uint8_t>("isMla", napi_uint8_array, &c->is_mla);
  f.array<uint8_t>("isMoe", napi_uint8_array, &c->is_moe);
  if (*error) return;
  if (c->is_mla.size() != c->layers || c->is_moe.size() != c->layers || c->layers == 0)
    f.wrong("layer kinds");
  // They are counted by adding them up: a 2 would point beyond the last layer's state.
  for (uint8_t flag : c->is_mla) {
    if (flag > 1) f.wrong("isMla");
  }
  for (uint8_t flag : c->is_moe) {
    if (flag > 1) f.wrong("isMoe");
  }
  if (c->attn_res_block_size == 0 || c->hidden == 0 || c->vocab == 0) f.wrong("config");
  if (c->moe_layers() > 0 && (c->experts_per_token == 0 || c->experts_per_token > c->experts))
    f.wrong("expert counts");
  if (c->kda_layers() > 0 && (c->kda.conv == 0 || c->kda.width() == 0)) f.wrong("KDA widths");
  const Config::Mla& m = c->mla;
  if (c->mla_layers() > 0 &&
      (m.heads == 0 || m.q_lora == 0 || m.kv_lora == 0 || m.query() == 0 || m.v_dim == 0))
    f.wrong("MLA widths");
}

}  // namespace

Error read_model(const Napi::Object& object, ModelTables* tables) {
  Error error;
  Fields f(object, &error);
  read_config(f.object("config"), &tables->config, &error);

  const Napi::Value list = object.Get("files");
  if (!list.IsArray()) return {"E_DEFECT", "the engine was given no files", ""};
  const auto array = list.As<Napi::Array>();
  for (uint32_t i = 0; i < array.Length(); ++i) {
    const Napi::Value entry = array.Get(i);
    if (!entry.IsObject()) return {"E_DEFECT", "the engine was given no valid file", ""};
    FileSpec& spec = tables->files.emplace_back();
    const Napi::Value path = entry.As<Napi::Object>().Get("path");
    if (!path.IsString()) return {"E_DEFECT", "the engine was given no valid path", ""};
    spec.path = path.As<Napi::String>().Utf8Value();
    Fields file(entry.As<Napi::Object>(), &error);
    file.number("size", &spec.size, 9e15);
    file.wide("inode", &spec.inode);
    file.wide("mtimeNs", &spec.mtime_ns);
  }

  f.view("tensors", napi_uint32_array, &tables->tensors);
  f.view("segments", napi_uint32_array, &tables->segments);
  f.view("pieces", napi_uint32_array, &tables->pieces);
  f.view("pieceOffsets", napi_float64_array, &tables->piece_offsets);
  f.view("blocks", napi_uint32_array, &tables->blocks);
  f.view("roles", napi_uint32_array, &tables->roles);

  Fields e(f.object("experts"), &error);
  uint32_t format = 0;
  ExpertTable& experts = tables->experts;
  e.number("format", &format, 2);
  e.number("layers", &experts.layers, 1 << 16);
  e.number("experts", &experts.experts, 65535);
  e.view("partBytes", napi_float64_array, &tables->expert_part_bytes);
  e.view("offsets", napi_float64_array, &tables->expert_offsets);
  e.view("files", napi_uint16_array, &tables->expert_files);
  experts.format = static_cast<ExpertFormat>(format);

  Fields m(f.object("embedding"), &error);
  uint32_t dtype = 0;
  m.number("file", &tables->embedding.file);
  m.number("offset", &tables->embedding.offset, 9e15);
  m.number("dtype", &dtype, 1);
  tables->embedding.dtype = static_cast<Dtype>(dtype);
  return error;
}

Error read_options(const Napi::Object& object, EngineOptions* options) {
  Error error;
  Fields f(object, &error);
  f.number("threads", &options->threads, 4096);
  f.number("chunk", &options->chunk, 1 << 16);
  f.number("trunkReaders", &options->stream.readers, 1024);
  f.number("ringSlots", &options->stream.slots, 1 << 20);
  f.number("expertReaders", &options->store.readers, 1024);
  f.number("expertsCached", &options->store.cached, 1 << 24);
  f.number("expertsInFlight", &options->store.in_flight, 1 << 16);
  f.flag("direct", &options->direct);
  uint32_t pace = 0;
  f.number("pace", &pace, 2);
  options->pace = static_cast<FileReader::Pace>(pace);
  f.array<uint8_t>("pinned", napi_uint8_array, &options->stream.pinned);
  f.array<float>("census", napi_float32_array, &options->store.census);
  // A token chooses an expert once at most.
  for (float share : options->store.census) {
    if (!(share >= 0 && share <= 1)) f.wrong("census");
  }
  const Napi::Value isa = object.Get("isa");
  const std::string name = isa.IsString() ? isa.As<Napi::String>().Utf8Value() : "";
  options->kernels = kernels_for(name.empty() ? nullptr : name.c_str());
  if (!options->kernels) error = {"E_USAGE", "instruction set not available: " + name, "leave K3_ISA unset"};
  if (!error && (options->threads == 0 || options->chunk == 0 || options->stream.readers == 0 ||
                 options->stream.slots == 0 || options->store.readers == 0)) {
    f.wrong("thread and buffer counts");
  }
  return error;
}

}  // namespace k3
