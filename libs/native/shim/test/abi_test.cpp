// abi_test DIRECTORY: what the ABI promises beside numbers: codes and messages, undone steps, abort, text, and that nothing
// is thrown. Needs llama-untied.gguf in the directory.

#include "dgr_shim.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

std::string directory, model;

void need(bool ok, const char * what) { // what is read behind the call that may have filled it
    if (!ok) {
        throw std::runtime_error(what);
    }
}

void need(bool ok, const std::string & what) { need(ok, what.c_str()); }

struct engine_free {
    void operator()(dgr_engine * e) const { dgr_free(e); }
};
using engine = std::unique_ptr<dgr_engine, engine_free>;

const dgr_load_params defaults{ 0, 0, 256, 3, 128, 32, 1, DGR_CACHE_F16, 1, 1, 0 };

struct outcome {
    dgr_code    code;
    std::string message;
    engine      handle;
};

outcome load(const std::string & path, const dgr_load_params & p, dgr_progress progress = nullptr, uintptr_t user = 0) {
    char           message[512] = "";
    const char *   paths[]      = { path.c_str() };
    dgr_engine *   e            = nullptr;
    const dgr_code code         = dgr_load(paths, 1, &p, progress, user, &e, message, sizeof(message));
    return { code, message, engine(e) };
}

engine loaded(dgr_load_params p = defaults) {
    outcome o = load(model, p);
    need(o.code == DGR_OK, o.message);
    return std::move(o.handle);
}

void refused(const std::string & path, const dgr_load_params & p, dgr_code code, const char * word) {
    const outcome o = load(path, p);
    need(o.code == code && !o.handle, path + ": code " + std::to_string(o.code) + ", expected " + std::to_string(code) + ": " + o.message);
    need(o.message.find(word) != std::string::npos, "the message does not speak of \"" + std::string(word) + "\": " + o.message);
}

dgr_code step(const engine & e, std::vector<dgr_step_desc> steps, const float * boundary = nullptr, std::vector<uint32_t> * codes = nullptr, std::string * why = nullptr) {
    std::vector<uint32_t> tokens, own(steps.size(), DGR_FAULT);
    for (const auto & s : steps) {
        for (uint32_t i = 0; i < s.rows; i++) {
            tokens.push_back((s.slot * 31 + (s.start + i) * 7 + 5) % 200);
        }
    }
    char           message[512] = "";
    const dgr_code code         = dgr_step(e.get(), steps.data(), uint32_t(steps.size()), tokens.data(), boundary, own.data(), message, sizeof(message));
    if (codes != nullptr) {
        *codes = own;
    }
    if (why != nullptr) {
        *why = message;
    }
    return code;
}

std::vector<float> logits(const engine & e, uint32_t row) {
    dgr_info info;
    dgr_info_get(e.get(), &info);
    std::vector<float> out(info.vocab);
    char               message[512] = "";
    need(dgr_logits(e.get(), row, out.data(), message, sizeof(message)) == DGR_OK, message);
    return out;
}

void test_refusals() {
    auto with = [](std::function<void(dgr_load_params &)> change) {
        dgr_load_params p = defaults;
        change(p);
        return p;
    };
    refused(directory + "/no such file.gguf", defaults, DGR_BAD_MODEL_FILE, "cannot open");
    char temporary[] = "/tmp/abi_test.XXXXXX";
    need(mkdtemp(temporary) != nullptr, "no temporary directory");
    const std::string broken = std::string(temporary) + "/broken.gguf";
    std::ofstream(broken) << "GGUFno header";
    refused(broken, defaults, DGR_BAD_MODEL_FILE, "no GGUF");
    const auto size = std::filesystem::file_size(model);
    std::filesystem::copy_file(model, broken, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(broken, size / 2);
    refused(broken, defaults, DGR_BAD_MODEL_FILE, "cannot make the model");
    std::ifstream in(model, std::ios::binary);
    std::string   bytes(std::istreambuf_iterator<char>(in), {});
    // "llama" is the value of general.architecture; a name of the same length that llama.cpp knows and no patch adapts
    const size_t at = bytes.find("llama", bytes.find("general.architecture"));
    bytes.replace(at, 5, "bloom");
    std::ofstream(broken, std::ios::binary) << bytes;
    refused(broken, defaults, DGR_UNSUPPORTED_ARCHITECTURE, "bloom");
    bytes.replace(at, 5, "zzzzz");
    std::ofstream(broken, std::ios::binary) << bytes;
    refused(broken, defaults, DGR_UNSUPPORTED_ARCHITECTURE, "zzzzz");
    std::filesystem::remove_all(temporary);

    refused(model, with([](auto & p) { p.layer_first = 2, p.layer_end = 2; }), DGR_SHARD_MISMATCH, "[2, 2)");
    refused(model, with([](auto & p) { p.layer_end = 99; }), DGR_SHARD_MISMATCH, "[0, 99)");
    refused(model, with([](auto & p) { p.layer_first = 4; }), DGR_SHARD_MISMATCH, "[4, 4)");
    refused(model, with([](auto & p) { p.slots = 0; }), DGR_MALFORMED, "slots");
    refused(model, with([](auto & p) { p.slots = 257; }), DGR_MALFORMED, "slots");
    refused(model, with([](auto & p) { p.micro_rows = 129; }), DGR_MALFORMED, "micro_rows");
    refused(model, with([](auto & p) { p.threads = 0; }), DGR_MALFORMED, "threads");
    refused(model, with([](auto & p) { p.cache_type = DGR_CACHE_Q8_0, p.flash_attention = 0; }), DGR_MALFORMED, "flash");
    refused(model, with([](auto & p) { p.slot_tokens = 1u << 30; }), DGR_MALFORMED, "2^31");
    refused(model, with([](auto & p) { p.slot_tokens = 1u << 23, p.slots = 250; }), DGR_OUT_OF_MEMORY, "fewer sessions");
}

struct progress_log {
    uint32_t stage = 0, stop_at = UINT32_MAX, calls = 0;
    uint64_t done = 0, total = 0;
    bool     ordered = true;
};

int32_t on_progress(uintptr_t user, uint32_t stage, uint64_t done, uint64_t total) {
    auto & log  = *reinterpret_cast<progress_log *>(user);
    log.ordered = log.ordered && stage >= log.stage && (stage > log.stage || done >= log.done);
    log.stage   = stage;
    log.done    = done;
    log.total   = total;
    log.calls++;
    return stage < log.stop_at;
}

void test_progress() {
    for (uint32_t map : { 0u, 1u }) {
        dgr_load_params p = defaults;
        p.memory_map      = map;
        progress_log log;
        need(load(model, p, on_progress, reinterpret_cast<uintptr_t>(&log)).code == DGR_OK, "the load failed");
        need(log.ordered && log.stage == DGR_PAGING && log.done == log.total && log.total > 1000, "progress is out of order or incomplete");
        for (uint32_t stage : { DGR_LOADING, DGR_PAGING }) {
            progress_log stop;
            stop.stop_at    = stage;
            const outcome o = load(model, p, on_progress, reinterpret_cast<uintptr_t>(&stop));
            need(o.code == DGR_CANCELLED && !o.handle, "a load that was stopped at stage " + std::to_string(stage) + " gave " + std::to_string(o.code));
        }
    }
}

void test_batch_checks() {
    const engine e = loaded();
    std::string  why;
    auto         malformed = [&](std::vector<dgr_step_desc> steps, const float * boundary, const char * word) {
        need(step(e, steps, boundary, nullptr, &why) == DGR_MALFORMED, "a bad batch was not refused: " + std::string(word));
        need(why.find(word) != std::string::npos, "the message does not speak of \"" + std::string(word) + "\": " + why);
    };
    const float one[1024] = {};
    malformed({}, nullptr, "needs a step");
    malformed({ { 0, 0, 1, 0 } }, one, "boundary");
    malformed({ { 3, 0, 1, 0 } }, nullptr, "slot 3");
    malformed({ { 1, 0, 1, 0 }, { 0, 0, 1, 0 } }, nullptr, "order");
    malformed({ { 1, 0, 1, 0 }, { 1, 1, 1, 0 } }, nullptr, "order");
    malformed({ { 0, 0, 0, 0 } }, nullptr, "do not fit");
    malformed({ { 0, 0, 300, 0 } }, nullptr, "do not fit");
    malformed({ { 0, 0, 129, 0 } }, nullptr, "129 rows");
    malformed({ { 0, 1, 1, 0 } }, nullptr, "starts at 1");
    malformed({ { 0, 0, 1, 7 } }, nullptr, "want 7");
    const uint32_t      token = 100000;
    const dgr_step_desc d     = { 0, 0, 1, 0 };
    uint32_t            code  = 0;
    need(dgr_step(e.get(), &d, 1, &token, nullptr, &code, nullptr, 0) == DGR_MALFORMED, "a token out of range was not refused");
    char message[8];
    need(dgr_step(e.get(), &d, 1, &token, nullptr, &code, message, sizeof(message)) == DGR_MALFORMED && strlen(message) == 7, "a message was not cut to its buffer");
    need(step(e, { { 0, 0, 1, DGR_WANT_NONE } }) == DGR_OK, "the engine does not work after bad batches");
    float out[1];
    need(dgr_logits(e.get(), 0, out, message, sizeof(message)) == DGR_MALFORMED, "logits that nobody wanted");
    need(dgr_boundary(e.get(), 0, 1, out, message, sizeof(message)) == DGR_MALFORMED, "a boundary of the tail");
    need(dgr_truncate(e.get(), 3, 0, message, sizeof(message)) == DGR_MALFORMED, "a slot out of range was truncated");
}

void test_undo_gives_the_same_bits() {
    const engine e = loaded();
    char         message[512];
    need(step(e, { { 0, 0, 40, DGR_WANT_NONE } }) == DGR_OK, "prefill failed");
    need(step(e, { { 0, 40, 1, DGR_WANT_LOGITS_LAST } }) == DGR_OK, "decode failed");
    const auto before = logits(e, 0);
    need(step(e, { { 0, 41, 60, DGR_WANT_NONE } }) == DGR_OK, "prefill failed");
    need(dgr_truncate(e.get(), 0, 40, message, sizeof(message)) == DGR_OK, message);
    need(step(e, { { 0, 40, 1, DGR_WANT_LOGITS_LAST } }) == DGR_OK, "decode failed");
    need(memcmp(before.data(), logits(e, 0).data(), before.size() * sizeof(float)) == 0, "other bits after going back");
    need(dgr_clear(e.get(), message, sizeof(message)) == DGR_OK, message);
    need(step(e, { { 0, 0, 40, DGR_WANT_NONE } }) == DGR_OK, "the slot is not empty after clear");
}

void test_copy() {
    const engine e = loaded();
    char         message[512];
    const auto   put = [&](uint32_t slot, uint32_t start, uint32_t rows) { // the same tokens whatever the slot
        std::vector<uint32_t> tokens;
        for (uint32_t i = start; i < start + rows; i++) {
            tokens.push_back(i * 7 % 200);
        }
        const dgr_step_desc d    = { slot, start, rows, DGR_WANT_LOGITS_LAST };
        uint32_t            code = DGR_FAULT;
        need(dgr_step(e.get(), &d, 1, tokens.data(), nullptr, &code, message, sizeof(message)) == DGR_OK && code == DGR_OK, message);
        return logits(e, rows - 1);
    };
    put(0, 0, 40);
    need(dgr_copy(e.get(), 0, 3, message, sizeof(message)) == DGR_MALFORMED, "a slot out of range took a copy");
    need(dgr_copy(e.get(), 0, 1, message, sizeof(message)) == DGR_OK, message);
    need(dgr_copy(e.get(), 0, 1, message, sizeof(message)) == DGR_MALFORMED, "a slot that is not empty took a copy");
    need(dgr_truncate(e.get(), 0, 0, message, sizeof(message)) == DGR_OK, message); // the copy lives on alone
    put(0, 0, 7);
    const auto copied = put(1, 40, 1);
    put(2, 0, 40);
    const auto own = put(2, 40, 1);
    need(memcmp(copied.data(), own.data(), own.size() * sizeof(float)) == 0, "a copy gives other bits");
    size_t size = 0;
    need(dgr_mark_size(e.get(), 1, &size, message, sizeof(message)) == DGR_MALFORMED, "a slot that goes back to any length took a mark");
}

// A window that keeps little more than it sees: it goes back a little by itself, and to marks to the bit.
void test_marks() {
    dgr_load_params p = defaults;
    p.short_window    = 1;
    p.slot_tokens     = 1024;
    const std::string plain = model;
    model                   = directory + "/gemma3-tied.gguf";
    const engine e          = loaded(p);
    model                   = plain;
    dgr_info info;
    dgr_info_get(e.get(), &info);
    need(info.window > 0, "the window keeps all");
    char     message[512];
    uint32_t length = 0, least = 0;
    auto     grow = [&](uint32_t rows, dgr_want want) {
        need(step(e, { { 0, length, rows, want } }) == DGR_OK, "a step failed");
        length += rows;
    };
    auto reach = [&] {
        need(dgr_reach(e.get(), 0, &least, message, sizeof(message)) == DGR_OK, message);
        return least;
    };
    grow(100, DGR_WANT_NONE);
    need(reach() == 1, "a cache that has lost nothing does not go back");
    size_t size = 0;
    need(dgr_mark_size(e.get(), 0, &size, message, sizeof(message)) == DGR_OK, message);
    std::vector<uint8_t> mark(size);
    need(dgr_mark_take(e.get(), 0, mark.data(), size - 1, message, sizeof(message)) == DGR_MALFORMED, "a mark of another size was taken");
    need(dgr_mark_take(e.get(), 0, mark.data(), size, message, sizeof(message)) == DGR_OK, message);
    grow(60, DGR_WANT_NONE);
    grow(1, DGR_WANT_LOGITS_LAST);
    const auto first = logits(e, 0);
    for (int i = 0; i < 7; i++) {
        grow(100, DGR_WANT_NONE);
    }
    need(reach() > 100 && reach() <= length, "the window has lost nothing: the test is too short");
    need(dgr_truncate(e.get(), 0, 100, message, sizeof(message)) == DGR_MALFORMED && step(e, { { 0, length, 1, DGR_WANT_NONE } }) == DGR_OK, "it went back too far");
    length++;
    need(dgr_mark_return(e.get(), 0, length + 1, mark.data(), size, message, sizeof(message)) == DGR_MALFORMED, "it returned to where it never was");
    need(dgr_mark_return(e.get(), 0, 100, mark.data(), size, message, sizeof(message)) == DGR_OK, message);
    length = 100;
    grow(60, DGR_WANT_NONE);
    grow(1, DGR_WANT_LOGITS_LAST);
    need(memcmp(first.data(), logits(e, 0).data(), first.size() * sizeof(float)) == 0, "other bits after returning to a mark");

    std::vector<std::vector<float>> told(1024); // logits by length; the least length that it goes back to by itself, to the bit
    while (reach() + 1 >= length) {
        need(length < 1000, "it never goes back by itself");
        grow(1, DGR_WANT_LOGITS_LAST);
        told[length] = logits(e, 0);
    }
    const uint32_t far = length;
    length             = least;
    need(dgr_truncate(e.get(), 0, length, message, sizeof(message)) == DGR_OK, message);
    while (length < far) {
        grow(1, DGR_WANT_LOGITS_LAST);
        need(memcmp(told[length].data(), logits(e, 0).data(), told[length].size() * sizeof(float)) == 0, "other bits after going back within the window");
    }

    // a step that pushed rows out of the window and failed leaves what was
    need(dgr_mark_size(e.get(), 0, &size, message, sizeof(message)) == DGR_OK, message);
    mark.resize(size);
    need(dgr_mark_take(e.get(), 0, mark.data(), size, message, sizeof(message)) == DGR_OK, message);
    grow(1, DGR_WANT_LOGITS_LAST);
    const auto second = logits(e, 0);
    need(dgr_mark_return(e.get(), 0, --length, mark.data(), size, message, sizeof(message)) == DGR_OK, message);
    dgr_abort(e.get(), 1);
    need(step(e, { { 0, length, 100, DGR_WANT_NONE } }) == DGR_CANCELLED, "abort has no effect");
    dgr_abort(e.get(), 0);
    grow(1, DGR_WANT_LOGITS_LAST);
    need(memcmp(second.data(), logits(e, 0).data(), second.size() * sizeof(float)) == 0, "other bits after a step that was stopped");
}

void test_abort() {
    const engine e = loaded();
    dgr_abort(e.get(), 1);
    need(step(e, { { 0, 0, 100, DGR_WANT_NONE }, { 2, 0, 20, DGR_WANT_NONE } }) == DGR_CANCELLED, "abort has no effect");
    need(step(e, { { 0, 0, 1, DGR_WANT_NONE } }) == DGR_CANCELLED, "the flag does not stay");
    dgr_abort(e.get(), 0);
    need(step(e, { { 0, 0, 10, DGR_WANT_NONE }, { 2, 0, 5, DGR_WANT_LOGITS_LAST } }) == DGR_OK, "aborted steps were not undone");

    // from another thread, whenever it hits: a step either stands or is undone, never half
    uint32_t length = 10;
    for (int i = 0; i < 200; i++) {
        std::atomic<bool> go{ false };
        std::thread       other([&] {
            while (!go.load()) {
                std::this_thread::yield();
            }
            for (int spin = 0; spin < i * 50; spin++) {
                std::atomic_signal_fence(std::memory_order_seq_cst);
            }
            dgr_abort(e.get(), 1);
        });
        go.store(true);
        const dgr_code code = step(e, { { 0, length, 64, DGR_WANT_NONE } });
        other.join();
        dgr_abort(e.get(), 0);
        need(code == DGR_OK || code == DGR_CANCELLED, "a step that may be aborted gave " + std::to_string(code));
        char message[512];
        if (code == DGR_OK) {
            need(dgr_truncate(e.get(), 0, length, message, sizeof(message)) == DGR_OK, message);
        }
        need(step(e, { { 0, length, 1, DGR_WANT_NONE } }) == DGR_OK, "an aborted step left rows");
        need(dgr_truncate(e.get(), 0, length, message, sizeof(message)) == DGR_OK, message);
    }
}

void test_numeric_fault() {
    dgr_load_params p = defaults;
    p.layer_first     = 2;
    const engine e    = loaded(p);
    dgr_info     info;
    dgr_info_get(e.get(), &info);
    need(info.boundary_in > 0 && info.boundary_out == 0, "this shard has other ends");
    std::vector<float> boundary(3 * info.boundary_in, 0.5f);
    boundary[2 * info.boundary_in + 1] = std::numeric_limits<float>::quiet_NaN(); // the second step's last row
    std::vector<uint32_t> codes;
    need(step(e, { { 0, 0, 1, DGR_WANT_LOGITS_LAST }, { 1, 0, 2, DGR_WANT_LOGITS_LAST } }, boundary.data(), &codes) == DGR_OK, "the batch failed as a whole");
    need(codes[0] == DGR_OK && codes[1] == DGR_NUMERIC_FAULT, "NaN was not found, or in the wrong step");
    std::fill(boundary.begin(), boundary.end(), 0.25f);
    need(step(e, { { 0, 1, 1, DGR_WANT_LOGITS_LAST } }, boundary.data(), &codes) == DGR_OK && codes[0] == DGR_OK, "a bystander was hurt");
    char message[512];
    need(dgr_clear(e.get(), message, sizeof(message)) == DGR_OK, message);
    need(step(e, { { 1, 0, 2, DGR_WANT_LOGITS_LAST } }, boundary.data(), &codes) == DGR_OK && codes[0] == DGR_OK, "NaN is left after clear");
    const float inf = std::numeric_limits<float>::infinity(), some[3] = { 1, -2, 3e38f }, bad[2] = { 1, -inf };
    need(dgr_finite(some, 3) == 1 && dgr_finite(bad, 2) == 0 && dgr_finite(bad, 1) == 1, "dgr_finite is wrong");
}

void test_text() {
    const engine e = loaded();
    auto         tokenize = [&](const std::string & text, bool special, bool parse) {
        size_t                count = 0;
        std::vector<uint32_t> ids(text.size() + 8);
        char                  message[512] = "";
        need(dgr_tokenize(e.get(), text.data(), text.size(), special, parse, ids.data(), ids.size(), &count, message, sizeof(message)) == DGR_OK, message);
        ids.resize(count);
        return ids;
    };
    auto detokenize = [&](const std::vector<uint32_t> & ids, bool special) {
        size_t      size = 0;
        std::string out(1024, 0);
        char        message[512] = "";
        need(dgr_detokenize(e.get(), ids.data(), ids.size(), special, out.data(), out.size(), &size, message, sizeof(message)) == DGR_OK, message);
        out.resize(size);
        return out;
    };
    for (const std::string & text : { std::string("a shard is"), std::string("Grüße, 世界 🙂"), std::string("\xff\xc3(\x80 x\xe4\xb8"), std::string("nul\0byte", 8), std::string() }) {
        const auto ids = tokenize(text, false, false);
        need(detokenize(ids, false) == text, "text did not come back: " + text);
        std::string pieces;
        for (uint32_t id : ids) {
            pieces += detokenize({ id }, false);
        }
        need(pieces == text, "pieces do not add up: " + text);
    }
    const auto plain = tokenize("abc", false, false), special = tokenize("abc", true, true);
    need(special.size() == plain.size() + 1 && std::equal(plain.begin(), plain.end(), special.begin() + 1), "BOS is not put before");
    const std::string written = detokenize(special, true);
    need(tokenize(written, true, true) == special, "BOS that is written in the text is doubled: " + written);
    need(detokenize(special, false) == "abc", "special tokens give bytes");

    char                  message[512];
    size_t                count = 0;
    std::vector<uint32_t> two(2, 77);
    need(dgr_tokenize(e.get(), "a b c d", 7, 0, 0, two.data(), 2, &count, message, sizeof(message)) == DGR_BUFFER_SHORT && count > 2 && two[0] == 77, "a short buffer was not refused");
    size_t size = 0;
    char   out[2];
    need(dgr_detokenize(e.get(), special.data(), special.size(), 0, out, 2, &size, message, sizeof(message)) == DGR_BUFFER_SHORT && size == 3, "a short buffer was not refused");
    const uint32_t far = 1u << 30;
    need(dgr_detokenize(e.get(), &far, 1, 0, out, 2, &size, message, sizeof(message)) == DGR_MALFORMED, "an id out of range was taken");
    need(dgr_ends_generation(e.get(), far) == 0, "an id out of range ends generation");
}

void test_log_and_build() {
    const engine e = loaded();
    std::string  out(70000, 0);
    out.resize(dgr_log_take(e.get(), out.data(), out.size()));
    need(out.size() > 100 && out.back() == '\n' && out[1] == ' ' && strchr("DIWE", out[0]) != nullptr, "the log is not lines with a level: " + out.substr(0, 60));
    need(dgr_log_take(e.get(), out.data(), out.size()) == 0, "lines were given twice");
    dgr_build build;
    dgr_build_info(&build);
    dgr_device device;
    dgr_device_get(&device);
    need(dgr_shim_version() == DGR_SHIM_VERSION && strlen(build.version) > 0 && strlen(build.instruction_set) > 0, "the library does not say what it is");
    need(device.memory_total > 0 && device.memory_free > 0, "the device has no memory");
    dgr_free(nullptr);
}

} // namespace

int main(int argc, char ** argv) {
    const char * from = getenv("DGR_TINY_MODELS");
    directory         = from != nullptr && *from != 0 ? from : argc > 1 ? argv[1] : "";
    model             = directory + "/llama-untied.gguf";
    const struct {
        const char * name;
        void (*run)();
    } tests[] = {
        { "refusals", test_refusals },         { "progress", test_progress }, { "batch checks", test_batch_checks },
        { "undo", test_undo_gives_the_same_bits }, { "copy", test_copy }, { "marks", test_marks }, { "abort", test_abort },       { "numeric fault", test_numeric_fault },
        { "text", test_text },                 { "log and build", test_log_and_build },
    };
    int failed = 0;
    for (const auto & test : tests) {
        try {
            test.run();
            printf("ok   %s\n", test.name);
        } catch (const std::exception & e) {
            printf("FAIL %s: %s\n", test.name, e.what());
            failed++;
        }
    }
    return failed == 0 ? 0 : 1;
}
