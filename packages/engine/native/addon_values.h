// What the engine says, as the objects of src/native.ts.
#pragma once

#include <napi.h>

#include "engine.h"

namespace k3 {

Napi::Object to_value(Napi::Env env, const PassResult& result);
Napi::Object to_value(Napi::Env env, const EngineSizes& sizes, const Weights& weights);
Napi::Object to_value(Napi::Env env, const ExpertCensus& census);
// The running totals.
Napi::Object to_value(Napi::Env env, const Engine& engine);

}  // namespace k3
