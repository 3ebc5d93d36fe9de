// Text and tokens, and what the library is.

#include "internal.h"

#include "ggml-backend.h"
#include "llama-model.h"
#include "llama-vocab.h"

#include <cstring>

using dgr::failure;
using dgr::format;

namespace {

// valid_utf8 is the number of bytes, from the first on, that are whole and legal UTF-8 sequences.
size_t valid_utf8(const char * text, size_t size) {
    const auto * s    = reinterpret_cast<const uint8_t *>(text);
    auto         tail = [&](size_t at) { return at < size && (s[at] & 0xc0) == 0x80; };
    size_t       i    = 0;
    while (i < size) {
        if (s[i] < 0x80) {
            i += 1;
        } else if (s[i] >= 0xc2 && s[i] < 0xe0 && tail(i + 1)) {
            i += 2;
        } else if ((s[i] & 0xf0) == 0xe0 && tail(i + 1) && tail(i + 2) && (s[i] != 0xe0 || s[i + 1] >= 0xa0) && (s[i] != 0xed || s[i + 1] < 0xa0)) {
            i += 3;
        } else if (s[i] >= 0xf0 && s[i] < 0xf5 && tail(i + 1) && tail(i + 2) && tail(i + 3) && (s[i] != 0xf0 || s[i + 1] >= 0x90) &&
                   (s[i] != 0xf4 || s[i + 1] < 0x90)) {
            i += 4;
        } else {
            break;
        }
    }
    return i;
}

std::vector<llama_token> tokenize_run(const llama_vocab * vocab, const char * text, size_t size, bool special, bool parse) {
    if (size > size_t(INT32_MAX) / 2) {
        throw failure(DGR_MALFORMED, "the text is longer than 1 GiB");
    }
    std::vector<llama_token> ids(size + 2);
    int32_t                  n = llama_tokenize(vocab, text, int32_t(size), ids.data(), int32_t(ids.size()), special, parse);
    if (n < 0 && n != INT32_MIN) {
        ids.resize(size_t(-n));
        n = llama_tokenize(vocab, text, int32_t(size), ids.data(), int32_t(ids.size()), special, parse);
    }
    if (n < 0) {
        throw failure(DGR_MALFORMED, "the text has too many tokens");
    }
    ids.resize(size_t(n));
    return ids;
}

llama_token byte_token(const llama_vocab * vocab, char byte) {
    switch (vocab->get_type()) {
        case LLAMA_VOCAB_TYPE_BPE:
        case LLAMA_VOCAB_TYPE_UGM:
        case LLAMA_VOCAB_TYPE_PLAMO2:
            try {
                return vocab->byte_to_token(uint8_t(byte));
            } catch (const std::out_of_range &) {
                break;
            }
        default: break;
    }
    throw failure(DGR_MALFORMED, format("the vocabulary has no token for the byte 0x%02x, which is no UTF-8", uint8_t(byte)));
}

void put_once(std::vector<llama_token> & ids, const llama_vocab * vocab) {
    const llama_token bos = llama_vocab_bos(vocab), eos = llama_vocab_eos(vocab);
    if (ids.size() > 1 && llama_vocab_get_add_bos(vocab) && ids[0] == bos && ids[1] == bos) {
        ids.erase(ids.begin());
    }
    if (ids.size() > 1 && llama_vocab_get_add_eos(vocab) && ids[ids.size() - 1] == eos && ids[ids.size() - 2] == eos) {
        ids.pop_back();
    }
}

} // namespace

std::vector<llama_token> dgr::tokenize(const llama_vocab * vocab, const char * text, size_t size, bool special, bool parse) {
    std::vector<llama_token> ids;
    size_t                   run = valid_utf8(text, size);
    // SentencePiece works on bytes by itself.
    if (run == size || vocab->get_type() == LLAMA_VOCAB_TYPE_SPM) {
        ids = tokenize_run(vocab, text, size, special, parse);
    } else {
        auto append = [&](const std::vector<llama_token> & more) { ids.insert(ids.end(), more.begin(), more.end()); };
        if (special && llama_vocab_get_add_bos(vocab)) {
            ids.push_back(llama_vocab_bos(vocab));
        }
        for (size_t at = 0; at < size; run = valid_utf8(text + at, size - at)) {
            if (run > 0) {
                append(tokenize_run(vocab, text + at, run, false, parse));
                at += run;
            } else {
                ids.push_back(byte_token(vocab, text[at++]));
            }
        }
        if (special && llama_vocab_get_add_eos(vocab)) {
            ids.push_back(llama_vocab_eos(vocab));
        }
    }
    if (special && parse) {
        put_once(ids, vocab);
    }
    return ids;
}

namespace {

void copy_string(char * out, size_t size, const char * text) { dgr::write_message(out, size, text ? text : ""); }

} // namespace

dgr_code dgr_tokenize(const dgr_engine * engine, const char * text, size_t size, uint32_t add_special, uint32_t parse_special,
                      uint32_t * tokens, size_t capacity, size_t * count, char * message, size_t message_size) {
    *count = 0;
    return dgr::guarded(message, message_size, [&] {
        const auto ids = dgr::tokenize(llama_model_get_vocab(engine->model.get()), text, size, add_special != 0, parse_special != 0);
        *count         = ids.size();
        if (ids.size() > capacity) {
            throw failure(DGR_BUFFER_SHORT, format("%zu ids do not fit in %zu", ids.size(), capacity));
        }
        for (size_t i = 0; i < ids.size(); i++) {
            tokens[i] = uint32_t(ids[i]);
        }
        return DGR_OK;
    });
}

dgr_code dgr_detokenize(const dgr_engine * engine, const uint32_t * tokens, size_t n_tokens, uint32_t special, char * out,
                        size_t capacity, size_t * size, char * message, size_t message_size) {
    *size = 0;
    return dgr::guarded(message, message_size, [&] {
        const llama_vocab * vocab = llama_model_get_vocab(engine->model.get());
        for (size_t i = 0; i < n_tokens; i++) {
            if (tokens[i] >= engine->info.vocab) {
                throw failure(DGR_MALFORMED, format("token %u is none of %u", tokens[i], engine->info.vocab));
            }
        }
        size_t written = 0;
        for (size_t i = 0; i < n_tokens; i++) {
            const size_t room = written < capacity ? std::min(capacity - written, size_t(INT32_MAX)) : 0;
            const int32_t n   = llama_token_to_piece(vocab, llama_token(tokens[i]), out + written, int32_t(room), 0, special != 0);
            if (n < 0) { // too long for what is left; count on
                *size += size_t(-n);
                capacity = written;
                continue;
            }
            written += size_t(n);
            *size += size_t(n);
        }
        if (*size > written) {
            throw failure(DGR_BUFFER_SHORT, format("%zu bytes do not fit in %zu", *size, capacity));
        }
        return DGR_OK;
    });
}

uint32_t dgr_ends_generation(const dgr_engine * engine, uint32_t token) {
    return token < engine->info.vocab && llama_vocab_is_eog(llama_model_get_vocab(engine->model.get()), llama_token(token));
}

void dgr_device_get(dgr_device * device) {
    *device = {};
    dgr::guarded(nullptr, 0, [&] {
        device->memory_free = dgr::available_memory();
        if (ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
            size_t free = 0, total = 0;
            ggml_backend_dev_memory(cpu, &free, &total);
            device->memory_total = total;
            copy_string(device->name, sizeof(device->name), ggml_backend_dev_description(cpu));
        }
        return DGR_OK;
    });
}

uint32_t dgr_shim_version(void) { return DGR_SHIM_VERSION; }

void dgr_build_info(dgr_build * build) {
    *build = {};
    dgr::guarded(nullptr, 0, [&] {
        copy_string(build->pin_tree, sizeof(build->pin_tree), DGR_PIN_TREE);
        copy_string(build->patches_hash, sizeof(build->patches_hash), DGR_PATCHES_HASH);
        copy_string(build->build_key, sizeof(build->build_key), DGR_BUILD_KEY);
        copy_string(build->version, sizeof(build->version), llama_version());
        copy_string(build->backend, sizeof(build->backend), "cpu");
        ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        if (device == nullptr) {
            return DGR_OK;
        }
        ggml_backend_reg_t reg      = ggml_backend_dev_backend_reg(device);
        auto               features = reinterpret_cast<ggml_backend_get_features_t>(ggml_backend_reg_get_proc_address(reg, "ggml_backend_get_features"));
        std::string        names;
        for (const ggml_backend_feature * f = features ? features(reg) : nullptr; f != nullptr && f->name != nullptr; f++) {
            if (strcmp(f->value, "0") != 0) {
                names += (names.empty() ? "" : ",") + std::string(f->name) + (strcmp(f->value, "1") == 0 ? "" : "=" + std::string(f->value));
            }
        }
        copy_string(build->instruction_set, sizeof(build->instruction_set), names.c_str());
        return DGR_OK;
    });
}
