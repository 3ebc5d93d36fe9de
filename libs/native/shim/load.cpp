// Making and ending an engine.

#include "internal.h"

#include "ggml-backend.h"
#include "gguf.h"
#include "llama-ext.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-model.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

using dgr::failure;
using dgr::format;

namespace {

constexpr uint32_t slot_padding = 256; // llama.cpp rounds the context of a sequence up to it

struct header {
    std::string architecture;
    uint32_t    n_layer = 0; // appended prediction layers not counted
};

struct gguf_closer {
    void operator()(gguf_context * g) const { gguf_free(g); }
};

uint32_t number(const gguf_context * g, const std::string & key, uint32_t absent) {
    const int64_t id = gguf_find_key(g, key.c_str());
    if (id < 0) {
        return absent;
    }
    switch (gguf_get_kv_type(g, id)) {
        case GGUF_TYPE_UINT32: return gguf_get_val_u32(g, id);
        case GGUF_TYPE_UINT16: return gguf_get_val_u16(g, id);
        case GGUF_TYPE_UINT8:  return gguf_get_val_u8(g, id);
        case GGUF_TYPE_INT32:  return uint32_t(std::max(0, gguf_get_val_i32(g, id)));
        case GGUF_TYPE_UINT64: return uint32_t(std::min<uint64_t>(UINT32_MAX, gguf_get_val_u64(g, id)));
        default: throw failure(DGR_BAD_MODEL_FILE, format("%s is no whole number", key.c_str()));
    }
}

header read_header(const char * path, const dgr::log_buffer & log) {
    FILE * file = fopen(path, "rb");
    if (file == nullptr) {
        throw failure(DGR_BAD_MODEL_FILE, format("cannot open %s: %s", path, strerror(errno)));
    }
    fclose(file);
    std::unique_ptr<gguf_context, gguf_closer> g(gguf_init_from_file(path, { /*no_alloc*/ true, /*ctx*/ nullptr }));
    if (!g) {
        throw failure(DGR_BAD_MODEL_FILE, format("%s is no GGUF file: %s", path, log.last_errors().c_str()));
    }
    header        h;
    const int64_t id = gguf_find_key(g.get(), "general.architecture");
    if (id < 0 || gguf_get_kv_type(g.get(), id) != GGUF_TYPE_STRING) {
        throw failure(DGR_BAD_MODEL_FILE, format("%s names no architecture", path));
    }
    h.architecture = gguf_get_val_str(g.get(), id);
    if (!llama_shard_arch_supported(h.architecture.c_str())) {
        throw failure(DGR_UNSUPPORTED_ARCHITECTURE,
                      format("architecture %s is not adapted for shards in this build", h.architecture.c_str()));
    }
    const uint32_t layers  = number(g.get(), h.architecture + ".block_count", 0);
    const uint32_t drafted = number(g.get(), h.architecture + ".nextn_predict_layers", 0);
    if (layers <= drafted) {
        throw failure(DGR_BAD_MODEL_FILE, format("%s has no layers", path));
    }
    h.n_layer = layers - drafted;
    return h;
}

void check_params(const dgr_load_params & p) {
    auto need = [](bool ok, const char * what) {
        if (!ok) {
            throw failure(DGR_MALFORMED, what);
        }
    };
    need(p.slot_tokens >= 1, "slot_tokens must be at least 1");
    need(p.slots >= 1 && p.slots <= llama_max_parallel_sequences(), "slots must be 1 to 256");
    need(p.batch_rows >= 1 && p.batch_rows <= INT32_MAX, "batch_rows must be at least 1");
    need(p.micro_rows >= 1 && p.micro_rows <= p.batch_rows, "micro_rows must be 1 to batch_rows");
    need(p.threads >= 1 && p.threads <= 512, "threads must be 1 to 512");
    need(p.cache_type <= DGR_CACHE_Q4_0, "cache_type is unknown");
    need(p.cache_type < DGR_CACHE_Q8_0 || p.flash_attention, "a quantised cache needs flash attention");
    const uint64_t padded = (uint64_t(p.slot_tokens) + slot_padding - 1) / slot_padding * slot_padding;
    need(padded * p.slots <= INT32_MAX, "slot_tokens times slots must stay below 2^31");
}

void check_cut(const header & h, const dgr_load_params & p) {
    const uint32_t end = p.layer_end == 0 ? h.n_layer : p.layer_end;
    if (p.layer_first >= end || end > h.n_layer) {
        throw failure(DGR_SHARD_MISMATCH,
                      format("layers [%u, %u) are not in the model's [0, %u)", p.layer_first, end, h.n_layer));
    }
}

struct load_progress {
    dgr_progress call;
    uintptr_t    user;
    uint64_t     done    = 0;
    bool         stopped = false;
};

bool on_progress(float fraction, void * user) {
    auto & p = *static_cast<load_progress *>(user);
    p.done   = std::max(p.done, uint64_t(1000 * std::clamp(fraction, 0.0f, 1.0f)));
    if (p.call != nullptr && p.call(p.user, DGR_LOADING, p.done, 1000) == 0) {
        p.stopped = true;
    }
    return !p.stopped;
}

// load_failure tells apart why llama.cpp returned no model or context; its log is all that says so.
failure load_failure(const dgr::log_buffer & log, dgr_code otherwise, const char * what) {
    const std::string why = log.last_errors();
    if (log.said("failed to allocate") || log.said("unable to allocate") || log.said("bad_alloc") || log.said("not enough memory")) {
        return { DGR_OUT_OF_MEMORY, format("no memory for %s: %s", what, why.c_str()) };
    }
    if (log.said("invalid layer shard")) {
        return { DGR_SHARD_MISMATCH, why };
    }
    return { otherwise, format("cannot make %s: %s", what, why.c_str()) };
}

void load_model(dgr_engine & e, const char * const * paths, uint32_t n_paths, const dgr_load_params & p, load_progress & progress) {
    llama_model_params mp          = llama_model_default_params();
    mp.n_gpu_layers                = 0;
    mp.load_mode                   = p.memory_map ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    mp.load_mtp                    = false;
    mp.shard_layer_first           = int32_t(p.layer_first);
    mp.shard_layer_last            = p.layer_end == 0 ? -1 : int32_t(p.layer_end);
    mp.progress_callback           = on_progress;
    mp.progress_callback_user_data = &progress;
    if (n_paths == 1) {
        e.model.reset(llama_model_load_from_file(paths[0], mp));
    } else {
        std::vector<const char *> list(paths, paths + n_paths);
        e.model.reset(llama_model_load_from_splits(list.data(), list.size(), mp));
    }
    if (progress.stopped) {
        throw failure(DGR_CANCELLED, "the load was stopped");
    }
    if (!e.model) {
        throw load_failure(e.log, DGR_BAD_MODEL_FILE, "the model");
    }
}

ggml_type cache_type(uint32_t type) {
    constexpr ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }; // in the order of dgr_cache_type
    return types[type];
}

// check_cache refuses caches that the system would promise and not deliver: the kernel grants the address space and kills
// the process when it fills it.
void check_cache(const dgr_engine & e, const dgr_load_params & p, uint32_t slot_tokens) {
    const auto & hparams = e.model->hparams;
    uint64_t     row     = 0;
    for (uint32_t il = e.info.layer_first; il < e.info.layer_end; il++) {
        row += ggml_row_size(cache_type(p.cache_type), hparams.n_embd_k_gqa(il)) +
               ggml_row_size(cache_type(p.cache_type), hparams.n_embd_v_gqa(il));
    }
    const uint64_t need = row * slot_tokens * p.slots, have = dgr::available_memory();
    if (need > have) {
        throw failure(DGR_OUT_OF_MEMORY,
                      format("caches of %u slots of %u tokens take %llu MiB and %llu MiB are free: ask for fewer sessions or a shorter context",
                             p.slots, slot_tokens, (unsigned long long) (need >> 20), (unsigned long long) (have >> 20)));
    }
}

// how_it_goes_back finds out the window of caches that keep little more than it sees. It refuses caches of which it is not
// known that they go back at all, as recurrent state.
void how_it_goes_back(dgr_engine & e) {
    const llama_memory_t memory = llama_get_memory(e.context.get());
    if (const auto * sliding = dynamic_cast<const llama_kv_cache_iswa *>(memory)) {
        const bool keeps_all = sliding->get_swa()->get_size() >= sliding->get_base()->get_size();
        e.info.window        = keeps_all ? 0 : e.model->hparams.n_swa;
    } else if (dynamic_cast<const llama_kv_cache *>(memory) == nullptr) {
        throw failure(DGR_UNSUPPORTED_ARCHITECTURE, format("the cache of architecture %s cannot take a step back", e.info.architecture));
    }
}

void make_context(dgr_engine & e, const dgr_load_params & p) {
    const uint32_t slot_tokens = (p.slot_tokens + slot_padding - 1) / slot_padding * slot_padding;
    check_cache(e, p, slot_tokens);

    llama_context_params cp = llama_context_default_params();
    cp.n_ctx                = slot_tokens * p.slots;
    cp.n_batch              = p.batch_rows;
    cp.n_ubatch             = p.micro_rows;
    cp.n_seq_max            = p.slots;
    cp.n_threads            = int32_t(p.threads);
    cp.n_threads_batch      = int32_t(p.threads);
    cp.flash_attn_type      = p.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k               = cache_type(p.cache_type);
    cp.type_v               = cache_type(p.cache_type);
    cp.kv_unified           = false;
    cp.swa_full             = !p.short_window; // a sliding window that keeps all goes back to any length
    cp.no_perf              = true;
    cp.abort_callback       = [](void * flag) { return static_cast<std::atomic<bool> *>(flag)->load(std::memory_order_relaxed); };
    cp.abort_callback_data  = &e.abort;
    e.context.reset(llama_init_from_model(e.model.get(), cp));
    if (!e.context) {
        throw load_failure(e.log, DGR_MALFORMED, "the caches and scratch buffers");
    }
    how_it_goes_back(e);
    if (llama_n_seq_max(e.context.get()) != p.slots || llama_n_ctx_seq(e.context.get()) < p.slot_tokens) {
        throw failure(DGR_FAULT, "llama.cpp made other caches than it was asked for");
    }
}

void fill_model_info(dgr_engine & e, const header & h, const dgr_load_params & p) {
    dgr_info & info = e.info;
    dgr::write_message(info.architecture, sizeof(info.architecture), h.architecture);
    info.n_layer = uint32_t(llama_model_n_layer(e.model.get()));
    if (info.n_layer != h.n_layer) {
        throw failure(DGR_FAULT, format("llama.cpp sees %u layers, the header %u", info.n_layer, h.n_layer));
    }
    info.layer_first       = p.layer_first;
    info.layer_end         = p.layer_end == 0 ? info.n_layer : p.layer_end;
    info.vocab             = uint32_t(llama_vocab_n_tokens(llama_model_get_vocab(e.model.get())));
    info.boundary_in       = uint32_t(llama_shard_width_in(e.model.get()));
    info.boundary_out      = uint32_t(llama_shard_width_out(e.model.get()));
    info.train_context     = uint32_t(std::max(0, llama_model_n_ctx_train(e.model.get())));
    info.has_chat_template = dgr::has_template(e.model.get());
}

} // namespace

dgr_code dgr_load(const char * const * paths, uint32_t n_paths, const dgr_load_params * params, dgr_progress progress,
                  uintptr_t user, dgr_engine ** engine, char * message, size_t message_size) {
    *engine = nullptr;
    return dgr::guarded(message, message_size, [&] {
        if (n_paths == 0) {
            throw failure(DGR_MALFORMED, "no path of a model was given");
        }
        check_params(*params);
        auto           e = std::make_unique<dgr_engine>();
        dgr::log_scope scope(e->log);

        const header h = read_header(paths[0], e->log);
        check_cut(h, *params);

        load_progress state{ progress, user };
        load_model(*e, paths, n_paths, *params, state);
        fill_model_info(*e, h, *params);
        e->tensors = dgr::own_tensors(e->model.get());
        for (const auto & t : e->tensors) {
            e->info.weights += t.size;
        }
        dgr::touch(e->tensors, progress, user);
        dgr::drop_foreign(e->tensors);

        make_context(*e, *params);
        e->batch_rows       = params->batch_rows;
        e->slots            = params->slots;
        e->info.slot_tokens = llama_n_ctx_seq(e->context.get());
        for (const auto & entry : llama_get_memory_breakdown(e->context.get())) {
            e->info.cache += entry.second.context;
            e->info.compute += entry.second.compute;
        }
        *engine             = e.release();
        return DGR_OK;
    });
}

void dgr_free(dgr_engine * engine) { delete engine; }

void dgr_info_get(const dgr_engine * engine, dgr_info * info) { *info = engine->info; }

void dgr_memory_get(const dgr_engine * engine, dgr_memory * memory) {
    *memory = {};
    dgr::guarded(nullptr, 0, [&] {
        dgr::measure_weights(engine->tensors, memory);
        return DGR_OK;
    });
}
