// The seam to JavaScript: two classes, NativeEngine and NativeState. Passes run on the engine's own thread;
// their promises are settled through a thread-safe function. See src/native.ts for the types.
#include <napi.h>

#include "addon_error.h"
#include "addon_state.h"
#include "addon_values.h"
#include "engine.h"
#include "options.h"

namespace k3 {
namespace {

struct Instance {
  Napi::FunctionReference engine, state;
};

// A job that has run, on its way back to JavaScript.
struct Done {
  Napi::Promise::Deferred deferred;
  Napi::ObjectReference keep;  // the engine's object, alive while it works
  Error error;
  bool is_pass = false;
  PassResult result;
};

void settle(Napi::Env env, Done* done) {
  Napi::HandleScope scope(env);
  if (done->error) {
    done->deferred.Reject(error_object(env, done->error));
  } else if (done->is_pass) {
    done->deferred.Resolve(to_value(env, done->result));
  } else {
    done->deferred.Resolve(env.Undefined());
  }
}

class NativeEngine : public Napi::ObjectWrap<NativeEngine> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "NativeEngine",
        {InstanceMethod<&NativeEngine::prepare>("prepare"), InstanceMethod<&NativeEngine::sizes>("sizes"),
         InstanceMethod<&NativeEngine::open>("open"), InstanceMethod<&NativeEngine::forward>("forward"),
         InstanceMethod<&NativeEngine::copy>("copy"), InstanceMethod<&NativeEngine::release>("release"),
         InstanceMethod<&NativeEngine::free_memory>("freeMemory"),
         InstanceMethod<&NativeEngine::create_state>("createState"),
         InstanceMethod<&NativeEngine::interrupt>("interrupt"), InstanceMethod<&NativeEngine::stats>("stats"),
         InstanceMethod<&NativeEngine::take_census>("takeCensus"),
         InstanceMethod<&NativeEngine::close>("close")});
  }

  explicit NativeEngine(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeEngine>(info) {
    const Napi::Env env = info.Env();
    if (!info[0].IsObject()) {
      throw_error(env, {"E_DEFECT", "NativeEngine needs a model", ""});
      return;
    }
    auto tables = std::make_unique<ModelTables>();
    if (Error error = read_model(info[0].As<Napi::Object>(), tables.get())) {
      throw_error(env, error);
      return;
    }
    tables_ = std::move(tables);
    given_ = Napi::Persistent(info[0].As<Napi::Object>());
  }

  ~NativeEngine() override { shut(true); }

 private:
  using Hook = Napi::Env::CleanupHook<void (*)(NativeEngine*), NativeEngine>;

  // Makes the checked model out of the tables, on a thread of the pool.
  class Preparation : public Napi::AsyncWorker {
   public:
    Preparation(Napi::Env env, NativeEngine* engine)
        : Napi::AsyncWorker(env),
          deferred(Napi::Promise::Deferred::New(env)),
          engine_(engine),
          keep_(Napi::Persistent(engine->Value())),
          given_(std::move(engine->given_)),
          tables_(std::move(engine->tables_)) {}
    void Execute() override { error_ = build_model(std::move(*tables_), model_.get()); }
    void OnOK() override {
      if (error_) return deferred.Reject(error_object(Env(), error_));
      engine_->model_ = std::move(model_);
      deferred.Resolve(Env().Undefined());
    }
    Napi::Promise::Deferred deferred;

   private:
    NativeEngine* engine_;
    Napi::ObjectReference keep_, given_;
    std::unique_ptr<ModelTables> tables_;
    std::unique_ptr<EngineModel> model_ = std::make_unique<EngineModel>();
    Error error_;
  };

  Napi::Value prepare(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    if (!tables_) {
      throw_error(env, {"E_DEFECT", "the engine is prepared already", ""});
      return env.Undefined();
    }
    auto* preparation = new Preparation(env, this);  // deletes itself
    const Napi::Value promise = preparation->deferred.Promise();
    preparation->Queue();
    return promise;
  }

  // What the areas would take; nothing is opened for it.
  Napi::Value sizes(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    if (!model_) {
      throw_error(env, {"E_DEFECT", "the engine is not prepared, or open, or closed", ""});
      return env.Undefined();
    }
    return to_value(env, measure(model_->weights, model_->experts), model_->weights);
  }

  Napi::Value open(const Napi::CallbackInfo& info) {
    Napi::Env env = info.Env();
    EngineOptions options;
    Error error;
    if (!model_ || !info[0].IsObject())
      error = {"E_DEFECT", "open needs a prepared engine and options, once", ""};
    if (!error) error = read_options(info[0].As<Napi::Object>(), &options);
    if (!error) {
      engine_ = std::make_unique<Engine>(std::move(*model_), std::move(options));
      model_.reset();
      error = engine_->open();
      if (error) engine_.reset();
    }
    if (error) {
      throw_error(env, error);
      return env.Undefined();
    }
    back_ = Napi::ThreadSafeFunction::New(env, Napi::Function::New(env, [](const Napi::CallbackInfo&) {}),
                                          "k3 engine", 0, 1);
    back_.Unref(env);
    // When the environment ends (a worker thread, process.exit) in mid-step. Hooks run in reverse order: this
    // one before that of the thread-safe function, which the engine's thread may still call.
    hook_ = std::make_unique<Hook>(env.AddCleanupHook(
        static_cast<void (*)(NativeEngine*)>([](NativeEngine* self) { self->shut(false); }), this));
    return env.Undefined();
  }

  void shut(bool remove_hook) {
    if (!engine_) return;
    engine_->close();
    if (remove_hook) hook_->Remove(Env());
    back_.Release();
    engine_.reset();
  }

  Napi::Value close(const Napi::CallbackInfo& info) {
    shut(true);
    return info.Env().Undefined();
  }

  Napi::Value interrupt(const Napi::CallbackInfo& info) {
    if (engine_) engine_->step.interrupt();
    return info.Env().Undefined();
  }

  Napi::Value create_state(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    const double capacity = info[0].IsNumber() ? info[0].As<Napi::Number>().DoubleValue() : 0;
    if (!engine_ || !(capacity >= 1 && capacity <= 1 << 30)) {
      throw_error(env, {"E_USAGE", "a session needs an open model and room for at least one position", ""});
      return env.Undefined();
    }
    auto state = std::make_shared<SessionState>();
    if (!state->allocate(engine_->config(), static_cast<uint32_t>(capacity))) {
      throw_error(env, {"E_MEMORY", "the system refused memory for a session", "ask for a shorter context"});
      return env.Undefined();
    }
    Napi::Object object = env.GetInstanceData<Instance>()->state.New({});
    NativeState::Unwrap(object)->state = std::move(state);
    return object;
  }

  // Runs a job on the engine's thread; gives its promise.
  template <typename F>
  Napi::Value run(const Napi::CallbackInfo& info, F&& job) {
    const Napi::Env env = info.Env();
    Done* done = new Done{Napi::Promise::Deferred::New(env), Napi::Persistent(Value()), {}, false, {}};
    const Napi::Value promise = done->deferred.Promise();
    if (jobs_++ == 0) back_.Ref(env);
    engine_->post([this, done, job = std::forward<F>(job)]() mutable {
      job(done);
      const auto settled = [this](Napi::Env e, Napi::Function, Done* d) {
        if (e == nullptr) return;  // the environment is ending: nobody waits any more
        if (d->is_pass) --passes_;
        if (--jobs_ == 0 && engine_) back_.Unref(e);
        settle(e, d);
        delete d;
      };
      back_.NonBlockingCall(done, settled);
    });
    return promise;
  }

  // forward(state, ids, flags): 1 logits of the last token, 2 of all, 4 trace.
  Napi::Value forward(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    const auto fail = [&](const Error& error) {
      throw_error(env, error);
      return env.Undefined();
    };
    if (!engine_) return fail({"E_USAGE", "the model is closed", ""});
    if (!info[0].IsObject() || !info[1].IsTypedArray() || !info[2].IsNumber() ||
        info[1].As<Napi::TypedArray>().TypedArrayType() != napi_int32_array ||
        !info[0].As<Napi::Object>().InstanceOf(env.GetInstanceData<Instance>()->state.Value())) {
      return fail({"E_DEFECT", "forward needs a state, ids and flags", ""});
    }
    const auto state = NativeState::Unwrap(info[0].As<Napi::Object>())->state;
    const auto array = info[1].As<Napi::Int32Array>();
    std::vector<int32_t> ids(array.Data(), array.Data() + array.ElementLength());
    if (!state) return fail({"E_USAGE", "the session is closed", ""});
    if (state->broken)
      return fail({"E_USAGE", "the session stopped inside a step and cannot go on", "roll it back"});
    if (ids.empty() || ids.size() > engine_->options().chunk)
      return fail({"E_DEFECT", "not a chunk of ids", ""});
    if (ids.size() > state->capacity - state->position) return fail({"E_USAGE", "the context is full", ""});
    for (int32_t id : ids) {
      if (id < 0 || static_cast<uint32_t>(id) >= engine_->config().vocab) {
        return fail({"E_USAGE", "token id " + std::to_string(id) + " is not in the vocabulary", ""});
      }
    }
    const uint32_t flags = info[2].As<Napi::Number>().Uint32Value();
    const PassOptions options{(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0};
    if (passes_++ == 0) engine_->step.reset();
    return run(info, [engine = engine_.get(), state, ids = std::move(ids), options](Done* done) {
      done->error = engine->forward(ids, *state, options, &done->result);
      done->is_pass = true;
    });
  }

  // copy(to, from): the whole state of a session, off the event loop.
  Napi::Value copy(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    const Napi::Function kind = env.GetInstanceData<Instance>()->state.Value();
    if (!engine_ || !info[0].IsObject() || !info[1].IsObject() ||
        !info[0].As<Napi::Object>().InstanceOf(kind) || !info[1].As<Napi::Object>().InstanceOf(kind)) {
      throw_error(env, {"E_DEFECT", "copy needs two states", ""});
      return env.Undefined();
    }
    const auto to = NativeState::Unwrap(info[0].As<Napi::Object>())->state;
    const auto from = NativeState::Unwrap(info[1].As<Napi::Object>())->state;
    return run(info, [to, from](Done* done) {
      if (!to || !from || !to->copy_from(*from))
        done->error = {"E_USAGE", "the sessions do not fit each other", ""};
    });
  }

  // release(state): frees it on the engine's thread, since giving back gigabytes takes a while.
  Napi::Value release(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    if (!engine_ || !info[0].IsObject() ||
        !info[0].As<Napi::Object>().InstanceOf(env.GetInstanceData<Instance>()->state.Value())) {
      return env.Undefined();
    }
    auto state = std::move(NativeState::Unwrap(info[0].As<Napi::Object>())->state);
    return run(info, [state = std::move(state)](Done*) mutable { state.reset(); });
  }

  Napi::Value free_memory(const Napi::CallbackInfo& info) {
    if (!engine_) return info.Env().Undefined();
    return run(info, [engine = engine_.get()](Done*) { engine->free_memory(); });
  }

  Napi::Value stats(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    return engine_ ? to_value(env, *engine_) : Napi::Object::New(env);
  }

  Napi::Value take_census(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    return to_value(env, engine_ ? engine_->take_census() : ExpertCensus{});
  }

  Napi::ObjectReference given_;          // what the tables lie in
  std::unique_ptr<ModelTables> tables_;  // until it is prepared
  std::unique_ptr<EngineModel> model_;   // from then until it is opened
  std::unique_ptr<Engine> engine_;
  Napi::ThreadSafeFunction back_;
  std::unique_ptr<Hook> hook_;
  uint32_t jobs_ = 0;    // not settled yet
  uint32_t passes_ = 0;  // of them
};

Napi::Value isa_name(const Napi::CallbackInfo& info) {
  const std::string name = info[0].IsString() ? info[0].As<Napi::String>().Utf8Value() : "";
  const Kernels* kernels = kernels_for(name.empty() ? nullptr : name.c_str());
  return kernels ? Napi::Value(Napi::String::New(info.Env(), kernels->name)) : info.Env().Null();
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  auto* instance = new Instance;
  const Napi::Function engine = NativeEngine::define(env), state = NativeState::define(env);
  instance->engine = Napi::Persistent(engine);
  instance->state = Napi::Persistent(state);
  env.SetInstanceData(instance);
  exports.Set("NativeEngine", engine);
  exports.Set("NativeState", state);
  exports.Set("isa", Napi::Function::New(env, isa_name, "isa"));
  return exports;
}

}  // namespace
}  // namespace k3

static Napi::Object Init(Napi::Env env, Napi::Object exports) {
  return k3::init(env, exports);
}
NODE_API_MODULE(k3, Init)
