// Evaluating batches, and undoing them.

#include "internal.h"

#include "llama-ext.h"

#include <cmath>
#include <cstring>

using dgr::failure;
using dgr::format;
using dgr::slot_length;

namespace {

// check_batch keeps from llama.cpp what it would answer by ending the process, and returns the number of rows.
uint32_t check_batch(const dgr_engine & e, const dgr_step_desc * steps, uint32_t n_steps, const uint32_t * tokens, const float * boundary_in) {
    if (n_steps == 0) {
        throw failure(DGR_MALFORMED, "a batch needs a step");
    }
    if ((boundary_in == nullptr) != (e.info.boundary_in == 0)) {
        throw failure(DGR_MALFORMED, "the head takes no boundary, every other shard needs one");
    }
    uint64_t rows = 0;
    for (uint32_t i = 0; i < n_steps; i++) {
        const dgr_step_desc & s = steps[i];
        if (s.slot >= e.slots || (i > 0 && s.slot <= steps[i - 1].slot)) {
            throw failure(DGR_MALFORMED, format("slot %u is out of range or order", s.slot));
        }
        if (s.rows == 0 || uint64_t(s.start) + s.rows > e.info.slot_tokens) {
            throw failure(DGR_MALFORMED, format("%u rows from %u do not fit in slot %u of %u tokens", s.rows, s.start, s.slot, e.info.slot_tokens));
        }
        if (slot_length(e, s.slot) != s.start) {
            throw failure(DGR_MALFORMED, format("slot %u holds %u tokens, the step starts at %u", s.slot, slot_length(e, s.slot), s.start));
        }
        if (s.want > DGR_WANT_LOGITS_ALL) {
            throw failure(DGR_MALFORMED, format("want %u is unknown", s.want));
        }
        rows += s.rows;
    }
    if (rows > e.batch_rows) {
        throw failure(DGR_MALFORMED, format("%llu rows in a batch of %u", (unsigned long long) rows, e.batch_rows));
    }
    for (uint64_t i = 0; i < rows; i++) {
        if (tokens[i] >= e.info.vocab) {
            throw failure(DGR_MALFORMED, format("token %u is none of %u", tokens[i], e.info.vocab));
        }
    }
    return uint32_t(rows);
}

llama_batch fill_batch(dgr_engine & e, const dgr_step_desc * steps, uint32_t n_steps, uint32_t rows, const uint32_t * tokens) {
    e.tokens.assign(tokens, tokens + rows);
    e.positions.resize(rows);
    e.sequences.resize(rows);
    e.sequence_counts.assign(rows, 1);
    e.sequence_lists.resize(rows);
    e.outputs.assign(rows, 0);
    const bool tail = e.info.boundary_out == 0;
    uint32_t   row  = 0;
    for (uint32_t i = 0; i < n_steps; i++) {
        for (uint32_t k = 0; k < steps[i].rows; k++, row++) {
            e.positions[row]      = llama_pos(steps[i].start + k);
            e.sequences[row]      = llama_seq_id(steps[i].slot);
            e.sequence_lists[row] = &e.sequences[row];
            const bool last       = k + 1 == steps[i].rows;
            e.outputs[row]        = tail && (steps[i].want == DGR_WANT_LOGITS_ALL || (steps[i].want == DGR_WANT_LOGITS_LAST && last));
        }
    }
    llama_batch batch{};
    batch.n_tokens = int32_t(rows);
    batch.token    = e.tokens.data();
    batch.pos      = e.positions.data();
    batch.n_seq_id = e.sequence_counts.data();
    batch.seq_id   = e.sequence_lists.data();
    batch.logits   = e.outputs.data();
    return batch;
}

bool finite(const uint8_t * values, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i * sizeof(bits), sizeof(bits));
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

bool finite(const float * values, size_t n) { return finite(reinterpret_cast<const uint8_t *>(values), n); }

const float * last_boundary(dgr_engine & e) {
    const float * boundary = llama_shard_boundary(e.context.get(), int32_t(e.last_rows), int32_t(e.info.boundary_out));
    if (boundary == nullptr) {
        throw failure(DGR_FAULT, "llama.cpp gave no boundary");
    }
    return boundary;
}

bool outputs_finite(dgr_engine & e, const dgr_step_desc & step, uint32_t first_row) {
    if (e.info.boundary_out != 0) {
        const float * boundary = last_boundary(e);
        const size_t  width    = e.info.boundary_out;
        return finite(boundary + first_row * width, step.rows * width);
    }
    for (uint32_t row = first_row; row < first_row + step.rows; row++) {
        if (!e.outputs[row]) {
            continue;
        }
        const float * logits = llama_get_logits_ith(e.context.get(), int32_t(row));
        if (logits == nullptr) {
            throw failure(DGR_FAULT, "llama.cpp gave no logits");
        }
        if (!finite(logits, e.info.vocab)) {
            return false;
        }
    }
    return true;
}

// undo takes a step back: to the mark that was taken before it, where the cache cannot go back by itself.
void undo(dgr_engine & e, const dgr_step_desc & step, const std::vector<uint8_t> & mark) {
    if (mark.empty()) {
        dgr::cut_back(e, step.slot, step.start);
    } else {
        dgr::return_to(e, step.slot, step.start, mark.data(), mark.size());
    }
}

// marks are taken before the steps of a batch where the caches do not go back to any length: what a step pushes out of a
// window is gone.
std::vector<std::vector<uint8_t>> marks(dgr_engine & e, const dgr_step_desc * steps, uint32_t n_steps) {
    std::vector<std::vector<uint8_t>> taken(n_steps);
    for (uint32_t i = 0; e.info.window > 0 && i < n_steps; i++) {
        if (steps[i].start > 0) {
            taken[i].resize(dgr::mark_size(e, steps[i].slot));
            dgr::take_mark(e, steps[i].slot, taken[i].data(), taken[i].size());
        }
    }
    return taken;
}

// decode runs the batch. Whatever is thrown in the middle of llama.cpp counts as a failed decode.
int32_t decode(dgr_engine & e, const llama_batch & batch, const float * boundary_in, std::string & thrown) {
    try {
        return llama_shard_decode(e.context.get(), batch, boundary_in, int32_t(e.info.boundary_in));
    } catch (const std::bad_alloc &) {
        thrown = "memory ran out";
        return -2;
    } catch (const std::exception & error) {
        thrown = error.what();
        return -3;
    }
}

dgr_code step(dgr_engine & e, const dgr_step_desc * steps, uint32_t n_steps, const uint32_t * tokens, const float * boundary_in, uint32_t * codes) {
    dgr::need_working(e);
    e.last_rows         = 0;
    const uint32_t    rows  = check_batch(e, steps, n_steps, tokens, boundary_in);
    const llama_batch batch = fill_batch(e, steps, n_steps, rows, tokens);
    const auto        before = marks(e, steps, n_steps);

    std::string   thrown;
    const int32_t result = decode(e, batch, boundary_in, thrown);
    llama_synchronize(e.context.get());
    if (result != 0) {
        // What micro-batches were through stays in the caches after an abort and some errors.
        for (uint32_t i = 0; i < n_steps; i++) {
            undo(e, steps[i], before[i]);
        }
        const std::string why = thrown.empty() ? e.log.last_errors() : thrown;
        if (result == 2) {
            throw failure(DGR_CANCELLED, "the batch was stopped");
        }
        if (result == -2) {
            throw failure(DGR_OUT_OF_MEMORY, format("no memory for a batch of %u rows: %s", rows, why.c_str()));
        }
        e.broken = true;
        throw failure(DGR_FAULT, format("llama.cpp failed on a batch of %u rows (%d): %s", rows, result, why.c_str()));
    }
    e.last_rows  = rows;
    uint32_t row = 0;
    for (uint32_t i = 0; i < n_steps; row += steps[i].rows, i++) {
        codes[i] = outputs_finite(e, steps[i], row) ? DGR_OK : DGR_NUMERIC_FAULT;
        if (codes[i] != DGR_OK) {
            undo(e, steps[i], before[i]);
        }
    }
    return DGR_OK;
}

} // namespace

dgr_code dgr_step(dgr_engine * engine, const dgr_step_desc * steps, uint32_t n_steps, const uint32_t * tokens,
                  const float * boundary_in, uint32_t * codes, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        dgr::log_scope scope(engine->log);
        return step(*engine, steps, n_steps, tokens, boundary_in, codes);
    });
}

dgr_code dgr_boundary(dgr_engine * engine, uint32_t row, uint32_t rows, void * out, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        const size_t width = engine->info.boundary_out;
        if (width == 0 || row > engine->last_rows || rows > engine->last_rows - row) {
            throw failure(DGR_MALFORMED, format("the last batch left no boundary of rows %u to %u", row, row + rows));
        }
        memcpy(out, last_boundary(*engine) + row * width, rows * width * sizeof(float));
        return DGR_OK;
    });
}

dgr_code dgr_logits(dgr_engine * engine, uint32_t row, void * out, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        if (engine->info.boundary_out != 0 || row >= engine->last_rows || !engine->outputs[row]) {
            throw failure(DGR_MALFORMED, format("the last batch left no logits of row %u", row));
        }
        memcpy(out, llama_get_logits_ith(engine->context.get(), int32_t(row)), engine->info.vocab * sizeof(float));
        return DGR_OK;
    });
}

uint32_t dgr_finite(const void * values, size_t count) { return finite(static_cast<const uint8_t *>(values), count); }

void dgr_abort(dgr_engine * engine, uint32_t value) { engine->abort.store(value != 0, std::memory_order_relaxed); }
