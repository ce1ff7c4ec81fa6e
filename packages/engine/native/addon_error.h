// What went wrong, as JavaScript sees it: an Error with `code` and maybe `hint`.
#pragma once

#include <napi.h>

#include "step.h"

namespace k3 {

inline Napi::Object error_object(Napi::Env env, const Error& error) {
  Napi::Object object = Napi::Error::New(env, error.message).Value();
  object.Set("code", error.code);
  if (!error.hint.empty()) object.Set("hint", error.hint);
  return object;
}

inline void throw_error(Napi::Env env, const Error& error) {
  Napi::Error(env, error_object(env, error)).ThrowAsJavaScriptException();
}

}  // namespace k3
