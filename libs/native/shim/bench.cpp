// dgr-native-bench: the speed of the whole model in one process, by llama.cpp's own calls, with the parameters that a
// worker's engine uses. What the chain over workers is compared with.
//
//   dgr-native-bench -m MODEL [-p 128] [-n 64] [-t 1] [-b 512] [-u 512] [-r 3] [--no-flash] [--cache f16] [--no-mmap]
//
// Prints one JSON object: the best of -r repetitions, in tokens a second.

#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct options {
    std::string model;
    std::string cache  = "f16";
    int         prompt = 128, decode = 64, threads = 1, batch = 512, micro = 512, repetitions = 3;
    bool        flash = true, map = true;
};

[[noreturn]] void fail(const std::string & what) {
    fprintf(stderr, "dgr-native-bench: %s\n", what.c_str());
    exit(1);
}

options parse(int argc, char ** argv) {
    options o;
    auto    value = [&](int & i) {
        if (i + 1 >= argc) {
            fail(std::string(argv[i]) + " needs a value");
        }
        return argv[++i];
    };
    auto number = [&](int & i) {
        const char * flag = argv[i];
        char *       end  = nullptr;
        const long   n    = strtol(value(i), &end, 10);
        if (*end != 0 || n < 1 || n > 1 << 20) {
            fail(std::string(flag) + " needs a whole number from 1 to 1048576");
        }
        return int(n);
    };
    for (int i = 1; i < argc; i++) {
        const std::string flag = argv[i];
        if (flag == "-m") {
            o.model = value(i);
        } else if (flag == "-p") {
            o.prompt = number(i);
        } else if (flag == "-n") {
            o.decode = number(i);
        } else if (flag == "-t") {
            o.threads = number(i);
        } else if (flag == "-b") {
            o.batch = number(i);
        } else if (flag == "-u") {
            o.micro = number(i);
        } else if (flag == "-r") {
            o.repetitions = number(i);
        } else if (flag == "--cache") {
            o.cache = value(i);
        } else if (flag == "--no-flash") {
            o.flash = false;
        } else if (flag == "--no-mmap") {
            o.map = false;
        } else {
            fail("unknown flag " + flag + "; usage: dgr-native-bench -m MODEL [-p N] [-n N] [-t N] [-b N] [-u N] [-r N] [--no-flash] [--cache f32|f16|q8_0|q4_0] [--no-mmap]");
        }
    }
    if (o.model.empty()) {
        fail("name a model with -m");
    }
    o.micro = std::min(o.micro, o.batch);
    return o;
}

ggml_type cache_type(const std::string & name) {
    if (name == "f32") {
        return GGML_TYPE_F32;
    }
    if (name == "f16") {
        return GGML_TYPE_F16;
    }
    if (name == "q8_0") {
        return GGML_TYPE_Q8_0;
    }
    if (name == "q4_0") {
        return GGML_TYPE_Q4_0;
    }
    fail("--cache must be f32, f16, q8_0 or q4_0");
}

void decode(llama_context * context, const std::vector<llama_token> & tokens, int start, bool logits) {
    llama_batch batch = llama_batch_init(int32_t(tokens.size()), 0, 1);
    for (size_t i = 0; i < tokens.size(); i++) {
        batch.token[i]     = tokens[i];
        batch.pos[i]       = start + int(i);
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = logits && i + 1 == tokens.size();
    }
    batch.n_tokens   = int32_t(tokens.size());
    const int result = llama_decode(context, batch);
    llama_batch_free(batch);
    if (result != 0) {
        fail("llama_decode returned " + std::to_string(result));
    }
}

llama_token best(llama_context * context, int vocab) {
    const float * logits = llama_get_logits_ith(context, -1);
    return llama_token(std::max_element(logits, logits + vocab) - logits);
}

} // namespace

int main(int argc, char ** argv) {
    using clock     = std::chrono::steady_clock;
    const options o = parse(argc, argv);
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);
    auto mp             = llama_model_default_params();
    mp.n_gpu_layers     = 0;
    mp.load_mode        = o.map ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    llama_model * model = llama_model_load_from_file(o.model.c_str(), mp);
    if (model == nullptr) {
        fail("cannot load " + o.model);
    }
    auto cp            = llama_context_default_params();
    cp.n_ctx           = uint32_t(o.prompt + o.decode + 1 + 255) / 256 * 256;
    cp.n_batch         = uint32_t(o.batch);
    cp.n_ubatch        = uint32_t(o.micro);
    cp.n_threads       = o.threads;
    cp.n_threads_batch = o.threads;
    cp.flash_attn_type = o.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k = cp.type_v = cache_type(o.cache);
    cp.kv_unified         = false;
    cp.swa_full           = true;
    cp.no_perf            = true;
    llama_context * context = llama_init_from_model(model, cp);
    if (context == nullptr) {
        fail("cannot make a context");
    }
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

    auto   seconds  = [](clock::duration d) { return std::chrono::duration<double>(d).count(); };
    double prefill = 0, decoded = 0;
    for (int run = 0; run <= o.repetitions; run++) { // run 0 warms up
        llama_memory_clear(llama_get_memory(context), false);
        const auto begin = clock::now();
        for (int at = 0; at < o.prompt; at += o.batch) {
            std::vector<llama_token> tokens;
            for (int i = at; i < std::min(o.prompt, at + o.batch); i++) {
                tokens.push_back((i * 7919 + 13) % vocab);
            }
            decode(context, tokens, at, at + o.batch >= o.prompt);
        }
        llama_token token  = best(context, vocab);
        const auto  middle = clock::now();
        for (int i = 0; i < o.decode; i++) {
            decode(context, { token }, o.prompt + i, true);
            token = best(context, vocab);
        }
        const auto end = clock::now();
        if (run > 0) {
            prefill = std::max(prefill, o.prompt / seconds(middle - begin));
            decoded = std::max(decoded, o.decode / seconds(end - middle));
        }
    }
    printf("{\"model_bytes\": %llu, \"n_layer\": %d, \"threads\": %d, \"prompt\": %d, \"decode\": %d, \"batch\": %d, \"micro_batch\": %d, "
           "\"flash_attention\": %s, \"cache_type\": \"%s\", \"repetitions\": %d, \"prefill_tokens_per_second\": %.2f, \"decode_tokens_per_second\": %.2f}\n",
           (unsigned long long) llama_model_size(model), llama_model_n_layer(model), o.threads, o.prompt, o.decode, o.batch, o.micro,
           o.flash ? "true" : "false", o.cache.c_str(), o.repetitions, prefill, decoded);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
