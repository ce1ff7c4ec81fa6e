#include "addon_state.h"

namespace k3 {

namespace {

Napi::Value number(const Napi::CallbackInfo& info, uint64_t n) {
  return Napi::Number::New(info.Env(), static_cast<double>(n));
}

// Calls f(offset, bytes, data) for the offset and the array that JavaScript gave; gives whether all went
// well.
template <typename F>
Napi::Value transfer(const Napi::CallbackInfo& info, const std::shared_ptr<SessionState>& state, F&& f) {
  const double offset = info[0].IsNumber() ? info[0].As<Napi::Number>().DoubleValue() : -1;
  bool good = state && offset >= 0 && info[1].IsTypedArray();
  if (good) {
    auto array = info[1].As<Napi::TypedArray>();
    uint8_t* data = static_cast<uint8_t*>(array.ArrayBuffer().Data()) + array.ByteOffset();
    good = f(static_cast<uint64_t>(offset), array.ByteLength(), data);
  }
  return Napi::Boolean::New(info.Env(), good);
}

}  // namespace

Napi::Function NativeState::define(Napi::Env env) {
  return DefineClass(
      env, "NativeState",
      {InstanceAccessor<&NativeState::position>("position"),
       InstanceAccessor<&NativeState::capacity>("capacity"), InstanceAccessor<&NativeState::broken>("broken"),
       InstanceAccessor<&NativeState::bytes>("bytes"),
       InstanceMethod<&NativeState::set_position>("setPosition"),
       InstanceMethod<&NativeState::serialize>("serialize"),
       InstanceMethod<&NativeState::deserialize>("deserialize"), InstanceMethod<&NativeState::free>("free")});
}

Napi::Value NativeState::position(const Napi::CallbackInfo& info) {
  return number(info, state ? state->position : 0);
}

Napi::Value NativeState::capacity(const Napi::CallbackInfo& info) {
  return number(info, state ? state->capacity : 0);
}

Napi::Value NativeState::broken(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), !state || state->broken);
}

Napi::Value NativeState::bytes(const Napi::CallbackInfo& info) {
  return number(info, state ? state->serialized_bytes() : 0);
}

// Says how many positions deserialize() will fill; 0 empties the state.
Napi::Value NativeState::set_position(const Napi::CallbackInfo& info) {
  const double at = info[0].IsNumber() ? info[0].As<Napi::Number>().DoubleValue() : -1;
  const bool good = state && at >= 0 && at <= state->capacity;
  if (good) {
    if (at == 0) state->clear();
    state->broken = false;
    state->position = static_cast<uint32_t>(at);
  }
  return Napi::Boolean::New(info.Env(), good);
}

Napi::Value NativeState::serialize(const Napi::CallbackInfo& info) {
  return transfer(info, state,
                  [&](uint64_t at, uint64_t n, uint8_t* data) { return state->serialize(at, n, data); });
}

Napi::Value NativeState::deserialize(const Napi::CallbackInfo& info) {
  return transfer(info, state,
                  [&](uint64_t at, uint64_t n, uint8_t* data) { return state->deserialize(at, n, data); });
}

void NativeState::free(const Napi::CallbackInfo&) {
  state.reset();
}

}  // namespace k3
