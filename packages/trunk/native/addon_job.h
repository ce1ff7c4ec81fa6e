// The Node-API face of BlockJob.
#pragma once

#include <napi.h>

namespace k3::trunk {

// The class `BlockJob` for JavaScript; src/native.ts has its types.
Napi::Function define_block_job(Napi::Env env);

}  // namespace k3::trunk
