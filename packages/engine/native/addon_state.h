// The state of a sequence as JavaScript holds it.
#pragma once

#include <napi.h>

#include <memory>

#include "session_state.h"

namespace k3 {

class NativeState : public Napi::ObjectWrap<NativeState> {
 public:
  static Napi::Function define(Napi::Env env);
  explicit NativeState(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeState>(info) {}
  std::shared_ptr<SessionState> state;

 private:
  Napi::Value position(const Napi::CallbackInfo& info);
  Napi::Value capacity(const Napi::CallbackInfo& info);
  Napi::Value broken(const Napi::CallbackInfo& info);
  Napi::Value bytes(const Napi::CallbackInfo& info);
  Napi::Value set_position(const Napi::CallbackInfo& info);
  Napi::Value serialize(const Napi::CallbackInfo& info);
  Napi::Value deserialize(const Napi::CallbackInfo& info);
  void free(const Napi::CallbackInfo& info);
};

}  // namespace k3
