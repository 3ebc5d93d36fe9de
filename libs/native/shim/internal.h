// What the files of the shim share. Nothing here is part of the ABI.

#pragma once

#include "dgr_shim.h"

#include "llama.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace dgr {

// An error with its code, on its way to the edge of the ABI.
struct failure : std::runtime_error {
    dgr_code code;
    failure(dgr_code code, const std::string & what) : std::runtime_error(what), code(code) {}
};

[[gnu::format(printf, 1, 2)]] std::string format(const char * pattern, ...);

// write_message puts text into a caller's buffer, cut to fit and ended by a zero byte.
void write_message(char * message, size_t size, const std::string & text);

// guarded runs body and turns whatever it throws into a code and a sentence.
template <typename F> dgr_code guarded(char * message, size_t size, F body) noexcept {
    try {
        return body();
    } catch (const failure & e) {
        write_message(message, size, e.what());
        return e.code;
    } catch (const std::bad_alloc &) {
        write_message(message, size, "memory ran out");
        return DGR_OUT_OF_MEMORY;
    } catch (const std::exception & e) {
        write_message(message, size, e.what());
        return DGR_FAULT;
    } catch (...) {
        write_message(message, size, "an exception of unknown type");
        return DGR_FAULT;
    }
}

// log_buffer keeps what llama.cpp says during the calls of one engine.
class log_buffer {
  public:
    void        add(char level, const char * text);
    size_t      take(char * out, size_t capacity);
    std::string last_errors() const; // of the present call, joined by "; "
    bool        said(const char * text) const; // whether a line of the present call holds text
    void        begin_call();

  private:
    mutable std::mutex       mutex;
    std::deque<std::string>  lines;   // with level and newline
    size_t                   bytes = 0;
    std::vector<std::string> present; // warnings and errors of the present call
    char                     level = 'I';
    bool                     open  = false; // the last line has not ended yet
};

// log_scope sends the log lines of this thread to buffer while it lives.
class log_scope {
  public:
    explicit log_scope(log_buffer & buffer);
    ~log_scope();
    log_scope(const log_scope &)             = delete;
    log_scope & operator=(const log_scope &) = delete;

  private:
    log_buffer * before;
};

// own_tensor is the memory of one tensor of the shard.
struct own_tensor {
    const uint8_t * data;
    size_t          size;
};

std::vector<own_tensor> own_tensors(const llama_model * model);

// touch reads one byte of each page of the own tensors in. Throws failure(DGR_CANCELLED).
void touch(const std::vector<own_tensor> & tensors, dgr_progress progress, uintptr_t user);

// drop_foreign lets go of pages of the mapped files that hold no own tensor: the kernel maps the neighbours of a page that
// is read, as far as they are in its cache. They come back if they are ever read.
void drop_foreign(const std::vector<own_tensor> & tensors);

// measure_weights adds to *out.
void measure_weights(const std::vector<own_tensor> & tensors, dgr_memory * out);

// available_memory is what the system can still give this process, in bytes; UINT64_MAX: not known.
uint64_t available_memory();

// need_working refuses an engine that is broken.
void need_working(const dgr_engine & e);

// slot_length is the tokens that a slot holds.
uint32_t slot_length(const dgr_engine & e, uint32_t slot);

// cut_back makes a slot length tokens long. The native library's own word is not enough: what counts is the positions that are
// left. Throws failure(DGR_FAULT), and the engine is broken.
void cut_back(dgr_engine & e, uint32_t slot, uint32_t length);

// A mark is what a slot's window holds; what goes back to any length by itself is not in it.
size_t mark_size(dgr_engine & e, uint32_t slot);
void   take_mark(dgr_engine & e, uint32_t slot, uint8_t * mark, size_t size);

// return_to makes a slot length tokens long, and its window what a mark of that length says. Throws failure(DGR_FAULT), and the
// engine is broken.
void return_to(dgr_engine & e, uint32_t slot, uint32_t length, const uint8_t * mark, size_t size);

struct model_free {
    void operator()(llama_model * m) const { llama_model_free(m); }
};
struct context_free {
    void operator()(llama_context * c) const { llama_free(c); }
};

// tokenize is dgr_tokenize inside the library.
std::vector<llama_token> tokenize(const llama_vocab * vocab, const char * text, size_t size, bool special, bool parse);

// chat is what an engine keeps for chats.
struct chat;
struct chat_free {
    void operator()(chat * c) const;
};

std::unique_ptr<chat, chat_free> new_chat();

// has_template says whether the model's header has a chat template.
bool has_template(const llama_model * model);

struct first_points; // grammar.h

} // namespace dgr

struct dgr_text {
    std::string bytes;
};

struct dgr_engine {
    mutable dgr::log_buffer                          log;
    std::unique_ptr<llama_model, dgr::model_free>     model;
    std::unique_ptr<llama_context, dgr::context_free> context;
    std::unique_ptr<dgr::chat, dgr::chat_free>        chat = dgr::new_chat();
    std::vector<dgr::own_tensor>                      tensors;
    dgr_info                                          info{};
    uint32_t                                          batch_rows = 0;
    uint32_t                                          slots      = 0;
    std::atomic<bool>                                 abort{false};
    bool                                              broken = false; // owner only

    mutable std::once_flag                            first_points_once; // any thread
    mutable std::shared_ptr<const dgr::first_points>  first_points;

    // The last batch, and its arrays, kept for the next one.
    uint32_t                    last_rows = 0; // 0: nothing to copy out
    std::vector<llama_token>    tokens;
    std::vector<llama_pos>      positions;
    std::vector<int32_t>        sequence_counts;
    std::vector<llama_seq_id>   sequences;
    std::vector<llama_seq_id *> sequence_lists;
    std::vector<int8_t>         outputs;
};
