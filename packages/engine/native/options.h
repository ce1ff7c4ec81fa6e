// What TypeScript hands over, taken apart and checked. See src/native.ts for the other side.
#pragma once

#include <napi.h>

#include "engine.h"

namespace k3 {

// Empty when all is well.
Error read_model(const Napi::Object& object, EngineModel* model);
Error read_options(const Napi::Object& object, EngineOptions* options);

}  // namespace k3
