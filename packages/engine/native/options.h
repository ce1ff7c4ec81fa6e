// What JavaScript gives: objects and typed arrays in, plain structs or an error out.
#pragma once

#include <napi.h>

#include "engine.h"
#include "model_tables.h"

namespace k3 {

// Takes a look at the tables, which the object must outlive; whether they make sense is for build_model() to
// say.
Error read_model(const Napi::Object& object, ModelTables* tables);
Error read_options(const Napi::Object& object, EngineOptions* options);

}  // namespace k3
