// What @k3/trunk sees of the codec: one function per operation, all arguments checked here.
#include <napi.h>

#include <chrono>
#include <memory>
#include <string>

#include "addon_job.h"
#include "codec.h"

namespace {

using k3::codec::BlockView;

Napi::Value fail(Napi::Env env, const char* message) {
  Napi::TypeError::New(env, message).ThrowAsJavaScriptException();
  return env.Undefined();
}

bool is_bytes(const Napi::Value& value) {
  return value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == napi_uint8_array;
}

// encode(raw): the coded block, or null when it would not be smaller.
Napi::Value Encode(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (!is_bytes(info[0])) return fail(env, "encode(raw: Uint8Array)");
  auto raw = info[0].As<Napi::Uint8Array>();
  if (raw.ByteLength() % 2 != 0 || raw.ByteLength() > k3::codec::kMaxRawBytes)
    return fail(env, "raw has a bad length");
  auto buffer = std::make_unique<uint8_t[]>(k3::codec::encode_bound(raw.ByteLength()));
  const size_t stored = k3::codec::encode(raw.Data(), raw.ByteLength(), buffer.get());
  if (stored == 0) return env.Null();
  auto out = Napi::Uint8Array::New(env, stored);
  std::copy_n(buffer.get(), stored, out.Data());
  return out;
}

// decode(stored, rawBytes, firstChunk?, chunks?): the decoded bytes, or null when the block is damaged.
Napi::Value Decode(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (!is_bytes(info[0]) || !info[1].IsNumber())
    return fail(env, "decode(stored: Uint8Array, rawBytes: number)");
  auto stored = info[0].As<Napi::Uint8Array>();
  const double raw_bytes = info[1].As<Napi::Number>().DoubleValue();
  if (!(raw_bytes >= 0 && raw_bytes <= 9007199254740991.0)) return fail(env, "rawBytes is not a size");
  BlockView view;
  if (!k3::codec::parse_block(stored.Data(), stored.ByteLength(), static_cast<size_t>(raw_bytes), &view)) {
    return env.Null();
  }
  const size_t first = info[2].IsNumber() ? info[2].As<Napi::Number>().Uint32Value() : 0;
  if (first > view.chunks) return fail(env, "firstChunk is out of range");
  const size_t chunks = info[3].IsNumber() ? info[3].As<Napi::Number>().Uint32Value() : view.chunks - first;
  if (chunks > view.chunks - first) return fail(env, "chunks is out of range");
  const size_t begin = std::min(view.values, first * k3::codec::kChunkValues);
  const size_t end = std::min(view.values, (first + chunks) * k3::codec::kChunkValues);
  auto out = Napi::Uint8Array::New(env, (end - begin) * 2);
  if (!k3::codec::decode(view, first, chunks, reinterpret_cast<uint16_t*>(out.Data()))) return env.Null();
  return out;
}

// crc32(bytes, seed?)
Napi::Value Crc32(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (!is_bytes(info[0])) return fail(env, "crc32(bytes: Uint8Array, seed?: number)");
  auto bytes = info[0].As<Napi::Uint8Array>();
  const uint32_t seed = info[1].IsNumber() ? info[1].As<Napi::Number>().Uint32Value() : 0;
  return Napi::Number::New(env, k3::codec::crc32(bytes.Data(), bytes.ByteLength(), seed));
}

Napi::Value Isa(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), k3::codec::isa());
}

Napi::Value SetIsa(const Napi::CallbackInfo& info) {
  if (!info[0].IsString()) return fail(info.Env(), "setIsa(name: string)");
  return Napi::Boolean::New(info.Env(), k3::codec::set_isa(info[0].As<Napi::String>().Utf8Value().c_str()));
}

// bench(what: "encode" | "decode" | "crc32", raw, repeats): the best seconds of one pass over raw, on this
// thread. Decoding goes tile by tile into a buffer that stays in the second-level cache, as the engine does
// it.
Napi::Value Bench(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (!info[0].IsString() || !is_bytes(info[1]) || !info[2].IsNumber())
    return fail(env, "bench(what, raw, repeats)");
  const std::string what = info[0].As<Napi::String>().Utf8Value();
  auto raw = info[1].As<Napi::Uint8Array>();
  const uint32_t repeats = info[2].As<Napi::Number>().Uint32Value();
  auto stored = std::make_unique<uint8_t[]>(k3::codec::encode_bound(raw.ByteLength()));
  const size_t size = k3::codec::encode(raw.Data(), raw.ByteLength(), stored.get());
  BlockView view;
  if (size == 0 || !k3::codec::parse_block(stored.get(), size, raw.ByteLength(), &view))
    return fail(env, "not coded");
  constexpr size_t kTile = 16;
  auto tile = std::make_unique<uint16_t[]>(kTile * k3::codec::kChunkValues);
  volatile uint32_t sink = 0;
  double best = 1e9;
  for (uint32_t r = 0; r < repeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
    if (what == "encode") {
      sink = static_cast<uint32_t>(k3::codec::encode(raw.Data(), raw.ByteLength(), stored.get()));
    } else if (what == "decode") {
      for (size_t c = 0; c < view.chunks; c += kTile) {
        sink = k3::codec::decode(view, c, std::min(kTile, view.chunks - c), tile.get());
      }
    } else {
      sink = k3::codec::crc32(raw.Data(), raw.ByteLength());
    }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  (void)sink;
  return Napi::Number::New(env, best);
}

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  exports.Set("encode", Napi::Function::New(env, Encode));
  exports.Set("decode", Napi::Function::New(env, Decode));
  exports.Set("crc32", Napi::Function::New(env, Crc32));
  exports.Set("isa", Napi::Function::New(env, Isa));
  exports.Set("setIsa", Napi::Function::New(env, SetIsa));
  exports.Set("bench", Napi::Function::New(env, Bench));
  exports.Set("BlockJob", k3::trunk::define_block_job(env));
  return exports;
}

}  // namespace

NODE_API_MODULE(k3_trunk, Init)
