// shard_test DIRECTORY: for every model in the directory, shards chained through the ABI against the whole model through
// llama.cpp's own API, bit for bit: all cuts in two, all in three (in the first configuration), and every layer alone. Also:
// a shard has and keeps its own tensors and no others.

#include "dgr_shim.h"

#include "gguf.h"
#include "llama.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

using rows = std::vector<float>;

struct config {
    const char * name;
    uint32_t     flash, cache_type, micro_rows;
};

const config configs[] = {
    { "flash f16", 1, DGR_CACHE_F16, 256 },
    { "flash f16, micro-batch 16", 1, DGR_CACHE_F16, 16 },
    { "plain f32", 0, DGR_CACHE_F32, 32 },
    { "flash q8_0", 1, DGR_CACHE_Q8_0, 256 },
    { "flash q4_0", 1, DGR_CACHE_Q4_0, 256 },
};

constexpr uint32_t batch_rows = 256, slot_tokens = 512, n_slots = 3;

void need(bool ok, const std::string & what) {
    if (!ok) {
        throw std::runtime_error(what);
    }
}

// What a scenario drives: the whole model, or a chain of shards.
struct runner {
    virtual ~runner() = default;
    // logits of the rows that were wanted, in the order of the batch
    virtual rows step(const std::vector<dgr_step_desc> & steps, const std::vector<uint32_t> & tokens) = 0;
    virtual void truncate(uint32_t slot, uint32_t length)                                            = 0;
};

// The whole model, as a program without shards would run it.
struct whole : runner {
    llama_model *   model   = nullptr;
    llama_context * context = nullptr;
    int             vocab   = 0;

    whole(const std::string & path, const config & c) {
        auto mp         = llama_model_default_params();
        mp.n_gpu_layers = 0;
        model           = llama_model_load_from_file(path.c_str(), mp);
        need(model != nullptr, "cannot load the whole model");
        auto cp            = llama_context_default_params();
        cp.n_ctx           = slot_tokens * n_slots;
        cp.n_batch         = batch_rows;
        cp.n_ubatch        = c.micro_rows;
        cp.n_seq_max       = n_slots;
        cp.n_threads       = 1;
        cp.n_threads_batch = 1;
        cp.flash_attn_type = c.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        constexpr ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }; // in the order of dgr_cache_type
        cp.type_k = cp.type_v = types[c.cache_type];
        cp.kv_unified         = false;
        cp.swa_full           = true;
        context               = llama_init_from_model(model, cp);
        need(context != nullptr, "cannot make a context for the whole model");
        vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    }
    ~whole() override {
        llama_free(context);
        llama_model_free(model);
    }
    rows step(const std::vector<dgr_step_desc> & steps, const std::vector<uint32_t> & tokens) override {
        llama_batch batch = llama_batch_init(int32_t(tokens.size()), 0, 1);
        for (const auto & s : steps) {
            for (uint32_t i = 0; i < s.rows; i++) {
                const int32_t n   = batch.n_tokens++;
                batch.token[n]    = llama_token(tokens[n]);
                batch.pos[n]      = llama_pos(s.start + i);
                batch.n_seq_id[n] = 1;
                batch.seq_id[n][0] = llama_seq_id(s.slot);
                batch.logits[n]    = s.want == DGR_WANT_LOGITS_ALL || (s.want == DGR_WANT_LOGITS_LAST && i + 1 == s.rows);
            }
        }
        const int32_t result = llama_decode(context, batch);
        rows          out;
        for (int32_t i = 0; result == 0 && i < batch.n_tokens; i++) {
            if (batch.logits[i]) {
                const float * logits = llama_get_logits_ith(context, i);
                out.insert(out.end(), logits, logits + vocab);
            }
        }
        llama_batch_free(batch);
        need(result == 0, "the whole model failed to decode");
        return out;
    }
    void truncate(uint32_t slot, uint32_t length) override {
        need(llama_memory_seq_rm(llama_get_memory(context), llama_seq_id(slot), llama_pos(length), -1), "the whole model did not go back");
    }
};

struct engine_free {
    void operator()(dgr_engine * e) const { dgr_free(e); }
};
using engine = std::unique_ptr<dgr_engine, engine_free>;

engine load(const std::string & path, uint32_t first, uint32_t end, const config & c) {
    dgr_load_params p{ first, end, slot_tokens, n_slots, batch_rows, c.micro_rows, 1, c.cache_type, c.flash, 1, 0 };
    char            message[512] = "";
    dgr_engine *    e            = nullptr;
    const char *    paths[]      = { path.c_str() };
    const dgr_code  code         = dgr_load(paths, 1, &p, nullptr, 0, &e, message, sizeof(message));
    need(code == DGR_OK, "cannot load layers [" + std::to_string(first) + ", " + std::to_string(end) + "): " + message);
    return engine(e);
}

struct chain : runner {
    std::vector<dgr_engine *> engines;

    rows step(const std::vector<dgr_step_desc> & steps, const std::vector<uint32_t> & tokens) override {
        rows boundary, out;
        char message[512] = "";
        for (dgr_engine * e : engines) {
            std::vector<uint32_t> codes(steps.size(), DGR_FAULT);
            need(dgr_step(e, steps.data(), uint32_t(steps.size()), tokens.data(), boundary.empty() ? nullptr : boundary.data(), codes.data(),
                          message, sizeof(message)) == DGR_OK, message);
            for (uint32_t code : codes) {
                need(code == DGR_OK, "a step gave NaN or Inf");
            }
            dgr_info info;
            dgr_info_get(e, &info);
            if (info.boundary_out > 0) {
                boundary.assign(tokens.size() * info.boundary_out, NAN);
                need(dgr_boundary(e, 0, uint32_t(tokens.size()), boundary.data(), message, sizeof(message)) == DGR_OK, message);
                continue;
            }
            uint32_t row = 0;
            for (const auto & s : steps) {
                for (uint32_t i = 0; i < s.rows; i++, row++) {
                    if (s.want == DGR_WANT_LOGITS_ALL || (s.want == DGR_WANT_LOGITS_LAST && i + 1 == s.rows)) {
                        out.resize(out.size() + info.vocab);
                        need(dgr_logits(e, row, &out[out.size() - info.vocab], message, sizeof(message)) == DGR_OK, message);
                    }
                }
            }
        }
        return out;
    }
    void truncate(uint32_t slot, uint32_t length) override {
        char message[512] = "";
        for (dgr_engine * e : engines) {
            need(dgr_truncate(e, slot, length, message, sizeof(message)) == DGR_OK, message);
        }
    }
};

// scenario runs the same work on whatever runner: prefill, decodes, two sequences in one batch, a long batch over several
// micro-batches, and going back. It returns the logits of each batch, and leaves the slots empty.
std::vector<rows> scenario(runner & r, uint32_t vocab) {
    std::mt19937          random(42);
    std::vector<rows>     out;
    std::vector<uint32_t> lengths(n_slots, 0);
    using want = std::vector<dgr_step_desc>;
    auto run   = [&](want steps) {
        std::vector<uint32_t> tokens;
        for (auto & s : steps) {
            s.start = lengths[s.slot];
            lengths[s.slot] += s.rows;
            for (uint32_t i = 0; i < s.rows; i++) {
                tokens.push_back(random() % vocab);
            }
        }
        out.push_back(r.step(steps, tokens));
    };
    auto back = [&](uint32_t slot, uint32_t length) {
        r.truncate(slot, length);
        lengths[slot] = length;
    };
    run({ { 0, 0, 64, DGR_WANT_LOGITS_ALL } });
    for (int i = 0; i < 6; i++) {
        run({ { 0, 0, 1, DGR_WANT_LOGITS_LAST } });
    }
    run({ { 0, 0, 1, DGR_WANT_LOGITS_LAST }, { 1, 0, 20, DGR_WANT_LOGITS_LAST } }); // a decode beside a prefill
    for (int i = 0; i < 3; i++) {
        run({ { 0, 0, 1, DGR_WANT_LOGITS_LAST }, { 1, 0, 1, DGR_WANT_LOGITS_LAST } });
    }
    run({ { 1, 0, 5, DGR_WANT_NONE } });
    back(0, 66);
    run({ { 0, 0, 1, DGR_WANT_LOGITS_LAST } });
    back(1, 3);
    run({ { 0, 0, 100, DGR_WANT_LOGITS_ALL }, { 1, 0, 40, DGR_WANT_LOGITS_LAST } });
    back(0, 2);
    run({ { 0, 0, 30, DGR_WANT_LOGITS_LAST }, { 2, 0, 3, DGR_WANT_LOGITS_ALL } });
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        back(slot, 0);
    }
    return out;
}

std::string compare(const std::vector<rows> & expected, const std::vector<rows> & got) {
    need(expected.size() == got.size(), "another number of batches");
    for (size_t i = 0; i < expected.size(); i++) {
        need(expected[i].size() == got[i].size(), "another number of logits");
        for (size_t k = 0; k < expected[i].size(); k++) {
            if (memcmp(&expected[i][k], &got[i][k], sizeof(float)) != 0) {
                return "batch " + std::to_string(i) + ", value " + std::to_string(k) + ": " + std::to_string(expected[i][k]) + " became " + std::to_string(got[i][k]);
            }
        }
    }
    return "";
}

// meaningful keeps a broken reference from proving anything: logits must be finite and must differ between positions.
void meaningful(const std::vector<rows> & reference, uint32_t vocab) {
    bool differ = false;
    for (const auto & batch : reference) {
        for (float v : batch) {
            need(std::isfinite(v), "the whole model gives NaN or Inf");
        }
        differ = differ || (batch.size() >= 2 * vocab && memcmp(batch.data(), batch.data() + vocab, vocab * sizeof(float)) != 0);
    }
    need(differ, "the whole model gives the same logits everywhere");
}

// cuts is every cut in two, every layer alone, with deep every cut in three, and no cut at all.
std::vector<std::vector<uint32_t>> cuts(uint32_t n_layer, bool deep) {
    std::vector<std::vector<uint32_t>> plans = { { 0, n_layer } };
    std::vector<uint32_t>              each;
    for (uint32_t a = 1; a < n_layer; a++) {
        plans.push_back({ 0, a, n_layer });
        for (uint32_t b = a + 1; deep && b < n_layer; b++) {
            plans.push_back({ 0, a, b, n_layer });
        }
    }
    for (uint32_t i = 0; i <= n_layer; i++) {
        each.push_back(i);
    }
    plans.push_back(each);
    return plans;
}

struct tensors {
    uint64_t bytes = 0, file = 0;
    size_t   count = 0;
};

// own is what the shard [first, end) must have, read from the file's header.
tensors own(const std::string & path, uint32_t first, uint32_t end, uint32_t n_layer) {
    gguf_context * g    = gguf_init_from_file(path.c_str(), { true, nullptr });
    const bool     tied = gguf_find_tensor(g, "output.weight") < 0;
    tensors        t;
    t.file = std::filesystem::file_size(path);
    for (int64_t i = 0; i < gguf_get_n_tensors(g); i++) {
        const std::string name  = gguf_get_tensor_name(g, i);
        uint32_t          layer = 0;
        bool              mine;
        if (sscanf(name.c_str(), "blk.%u.", &layer) == 1) {
            mine = first <= layer && layer < end;
        } else if (name == "token_embd.weight") {
            mine = first == 0 || (tied && end == n_layer);
        } else if (name.compare(0, 6, "output") == 0) {
            mine = end == n_layer;
        } else {
            mine = true;
        }
        if (mine) {
            t.bytes += gguf_get_tensor_size(g, i);
            t.count++;
        }
    }
    gguf_free(g);
    return t;
}

void check_memory(dgr_engine * e, const std::string & path) {
    dgr_info   info;
    dgr_memory memory;
    dgr_info_get(e, &info);
    dgr_memory_get(e, &memory);
    const tensors     t     = own(path, info.layer_first, info.layer_end, info.n_layer);
    const uint64_t    slack = 2 * t.count * uint64_t(sysconf(_SC_PAGESIZE)); // each tensor may begin and end inside a page
    const std::string who   = "layers [" + std::to_string(info.layer_first) + ", " + std::to_string(info.layer_end) + ") ";
    need(info.weights == t.bytes, who + "have " + std::to_string(info.weights) + " bytes of weights, own " + std::to_string(t.bytes));
    need(memory.weights_mapped == t.bytes, who + "do not take all weights from the mapped file");
    need(memory.file_mapped >= t.bytes && memory.file_mapped <= t.file + slack, who + "map " + std::to_string(memory.file_mapped) + " bytes");
    need(memory.file_resident >= t.bytes, who + "were not read in: " + std::to_string(memory.file_resident) + " of " + std::to_string(t.bytes) + " bytes are present");
    need(memory.file_resident <= t.bytes + slack, who + "keep " + std::to_string(memory.file_resident) + " bytes of the file, own " + std::to_string(t.bytes));
    need(info.cache > 0 && info.compute > 0, who + "tell no cache or scratch size");
}

int run_model(const std::string & path) {
    int      failed = 0;
    uint32_t n_plans = 0, n_layer = 0;
    for (const config & c : configs) {
        std::vector<rows> reference;
        uint32_t          vocab;
        {
            whole w(path, c);
            n_layer   = uint32_t(llama_model_n_layer(w.model));
            vocab     = uint32_t(w.vocab);
            reference = scenario(w, vocab);
            meaningful(reference, vocab);
        }
        std::map<std::pair<uint32_t, uint32_t>, engine> shards;
        for (const auto & plan : cuts(n_layer, &c == configs)) {
            chain       run;
            std::string name;
            for (size_t i = 0; i + 1 < plan.size(); i++) {
                auto & shard = shards[{ plan[i], plan[i + 1] }];
                if (!shard) {
                    shard = load(path, plan[i], plan[i + 1], c);
                    check_memory(shard.get(), path);
                }
                run.engines.push_back(shard.get());
                name += (i > 0 ? "|" : "") + std::to_string(plan[i]) + "-" + std::to_string(plan[i + 1]);
            }
            const std::string difference = compare(reference, scenario(run, vocab));
            n_plans++;
            if (!difference.empty()) {
                printf("%s, %s, %s: %s\n", path.c_str(), c.name, name.c_str(), difference.c_str());
                failed++;
            }
        }
    }
    printf("%s: %u layers, %u cuts and configurations, %d different\n", path.c_str(), n_layer, n_plans, failed);
    return failed;
}

} // namespace

int main(int argc, char ** argv) {
    const char * from      = getenv("DGR_TINY_MODELS");
    std::string  directory = from != nullptr && *from != 0 ? from : argc > 1 ? argv[1] : "";
    int          failed = 0, models = 0;
    try {
        need(!directory.empty(), "no directory of models: set DGR_TINY_MODELS");
        llama_log_set([](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                fputs(text, stderr);
            }
        }, nullptr);
        for (const auto & entry : std::filesystem::directory_iterator(directory)) {
            if (entry.path().extension() == ".gguf") {
                models++;
                failed += run_model(entry.path().string());
            }
        }
        need(models > 0, "no model in " + directory);
    } catch (const std::exception & e) {
        printf("shard_test: %s\n", e.what());
        return 1;
    }
    return failed == 0 ? 0 : 1;
}
