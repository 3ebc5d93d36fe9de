// What a slot holds, and how it goes back.

#include "internal.h"

#include "llama-context.h"

#include <algorithm>

using dgr::failure;

namespace dgr {

void need_working(const dgr_engine & e) {
    if (e.broken) {
        throw failure(DGR_FAULT, "the engine failed before; free it and make a new one");
    }
}

uint32_t slot_length(const dgr_engine & e, uint32_t slot) {
    return uint32_t(llama_memory_seq_pos_max(llama_get_memory(e.context.get()), llama_seq_id(slot)) + 1);
}

void cut_back(dgr_engine & e, uint32_t slot, uint32_t length) {
    if (slot_length(e, slot) > length) {
        llama_memory_seq_rm(llama_get_memory(e.context.get()), llama_seq_id(slot), llama_pos(length), -1);
    }
    if (slot_length(e, slot) != length) {
        e.broken = true;
        throw failure(DGR_FAULT, format("slot %u could not go back to %u tokens", slot, length));
    }
}

size_t mark_size(dgr_engine & e, uint32_t slot) {
    return llama_state_seq_get_size_ext(e.context.get(), llama_seq_id(slot), LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
}

void take_mark(dgr_engine & e, uint32_t slot, uint8_t * mark, size_t size) {
    if (llama_state_seq_get_data_ext(e.context.get(), mark, size, llama_seq_id(slot), LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) != size) {
        throw failure(DGR_FAULT, format("llama.cpp gave no state of slot %u", slot));
    }
}

void return_to(dgr_engine & e, uint32_t slot, uint32_t length, const uint8_t * mark, size_t size) {
    llama_memory_seq_rm(llama_get_memory(e.context.get()), llama_seq_id(slot), llama_pos(length), -1);
    const size_t read = llama_state_seq_set_data_ext(e.context.get(), mark, size, llama_seq_id(slot), LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    if (read != size || slot_length(e, slot) != length) {
        e.broken = true;
        throw failure(DGR_FAULT, format("slot %u could not return to its mark at %u tokens", slot, length));
    }
}

} // namespace dgr

namespace {

void need_slot(const dgr_engine & e, uint32_t slot) {
    dgr::need_working(e);
    if (slot >= e.slots) {
        throw failure(DGR_MALFORMED, dgr::format("slot %u is none of %u", slot, e.slots));
    }
}

// reach is the least length but 0 to which a slot goes back by itself: everything that a window of the tokens behind it sees
// must be there still. What the library says to a cut is no proof: it accepts any, and then answers wrongly.
uint32_t reach(const dgr_engine & e, uint32_t slot) {
    const uint32_t  length = dgr::slot_length(e, slot);
    const llama_pos first  = llama_memory_seq_pos_min(llama_get_memory(e.context.get()), llama_seq_id(slot));
    if (e.info.window == 0 || first <= 0) {
        return std::min(length, 1u);
    }
    return std::min(length, uint32_t(first) + e.info.window);
}

void need_marks(const dgr_engine & e, uint32_t slot) {
    if (e.info.window == 0) {
        throw failure(DGR_MALFORMED, dgr::format("slot %u goes back to any length and takes no marks", slot));
    }
}

} // namespace

dgr_code dgr_truncate(dgr_engine * engine, uint32_t slot, uint32_t length, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        need_slot(*engine, slot);
        dgr::log_scope scope(engine->log);
        if (dgr::slot_length(*engine, slot) <= length) {
            return DGR_OK;
        }
        if (length > 0 && length < reach(*engine, slot)) {
            throw failure(DGR_MALFORMED, dgr::format("slot %u goes back to %u tokens or more, or to 0; %u is too far", slot, reach(*engine, slot), length));
        }
        dgr::cut_back(*engine, slot, length);
        return DGR_OK;
    });
}

dgr_code dgr_reach(dgr_engine * engine, uint32_t slot, uint32_t * least, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        need_slot(*engine, slot);
        *least = reach(*engine, slot);
        return DGR_OK;
    });
}

dgr_code dgr_mark_size(dgr_engine * engine, uint32_t slot, size_t * size, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        need_slot(*engine, slot);
        need_marks(*engine, slot);
        dgr::log_scope scope(engine->log);
        *size = dgr::mark_size(*engine, slot);
        return DGR_OK;
    });
}

dgr_code dgr_mark_take(dgr_engine * engine, uint32_t slot, void * mark, size_t size, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        need_slot(*engine, slot);
        need_marks(*engine, slot);
        dgr::log_scope scope(engine->log);
        if (size != dgr::mark_size(*engine, slot)) {
            throw failure(DGR_MALFORMED, dgr::format("a mark of slot %u is not %zu bytes", slot, size));
        }
        dgr::take_mark(*engine, slot, static_cast<uint8_t *>(mark), size);
        return DGR_OK;
    });
}

dgr_code dgr_mark_return(dgr_engine * engine, uint32_t slot, uint32_t length, const void * mark, size_t size, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        need_slot(*engine, slot);
        need_marks(*engine, slot);
        if (length == 0 || length > dgr::slot_length(*engine, slot)) {
            throw failure(DGR_MALFORMED, dgr::format("slot %u of %u tokens has no mark at %u", slot, dgr::slot_length(*engine, slot), length));
        }
        dgr::log_scope scope(engine->log);
        dgr::return_to(*engine, slot, length, static_cast<const uint8_t *>(mark), size);
        return DGR_OK;
    });
}

dgr_code dgr_copy(dgr_engine * engine, uint32_t from, uint32_t to, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        need_slot(*engine, from);
        need_slot(*engine, to);
        if (from == to || dgr::slot_length(*engine, to) != 0) {
            throw failure(DGR_MALFORMED, dgr::format("slot %u is not empty; only an empty one takes a copy", to));
        }
        dgr::log_scope scope(engine->log);
        const uint32_t length = dgr::slot_length(*engine, from);
        llama_memory_seq_cp(llama_get_memory(engine->context.get()), llama_seq_id(from), llama_seq_id(to), -1, -1);
        engine->context->memory_update(false); // else the rows are copied before the next batch, and a mark would miss them
        if (dgr::slot_length(*engine, to) != length || dgr::slot_length(*engine, from) != length) {
            engine->broken = true;
            throw failure(DGR_FAULT, dgr::format("slot %u of %u tokens was not copied to slot %u", from, length, to));
        }
        return DGR_OK;
    });
}

dgr_code dgr_clear(dgr_engine * engine, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        dgr::need_working(*engine);
        dgr::log_scope scope(engine->log);
        engine->last_rows = 0;
        llama_memory_clear(llama_get_memory(engine->context.get()), true);
        return DGR_OK;
    });
}
