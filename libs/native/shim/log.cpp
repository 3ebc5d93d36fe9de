// Log lines of llama.cpp: the library has one callback for the process, an engine wants its own lines. The callback finds
// the engine by the thread that is inside one of its calls; lines of other threads are dropped.

#include "internal.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace dgr {

namespace {

constexpr size_t max_bytes   = 64 * 1024;
constexpr size_t max_present = 16;

thread_local log_buffer * current = nullptr;

char letter(ggml_log_level level) {
    switch (level) {
        case GGML_LOG_LEVEL_ERROR: return 'E';
        case GGML_LOG_LEVEL_WARN:  return 'W';
        case GGML_LOG_LEVEL_DEBUG: return 'D';
        case GGML_LOG_LEVEL_CONT:  return 0;
        default:                   return 'I';
    }
}

void callback(ggml_log_level level, const char * text, void *) {
    if (current == nullptr || text == nullptr) {
        return;
    }
    try {
        current->add(letter(level), text);
    } catch (...) {
        // A lost line is better than an exception in the middle of llama.cpp.
    }
}

} // namespace

std::string format(const char * pattern, ...) {
    char    text[1024];
    va_list args;
    va_start(args, pattern);
    vsnprintf(text, sizeof(text), pattern, args);
    va_end(args);
    return text;
}

void write_message(char * message, size_t size, const std::string & text) {
    if (message == nullptr || size == 0) {
        return;
    }
    const size_t n = std::min(size - 1, text.size());
    memcpy(message, text.data(), n);
    message[n] = 0;
}

void log_buffer::begin_call() {
    std::lock_guard<std::mutex> lock(mutex);
    present.clear();
}

void log_buffer::add(char new_level, const char * text) {
    std::lock_guard<std::mutex> lock(mutex);
    if (new_level != 0) {
        level = new_level;
    }
    const bool keep = level == 'E' || level == 'W';
    while (*text != 0) {
        const char * end  = strchr(text, '\n');
        const size_t size = end ? size_t(end - text) : strlen(text);
        if (open) {
            lines.back().insert(lines.back().size() - 1, text, size);
            bytes += size;
            if (keep && !present.empty()) {
                present.back().append(text, size);
            }
        } else {
            lines.push_back(std::string(1, level) + " " + std::string(text, size) + "\n");
            bytes += lines.back().size();
            if (keep) {
                present.emplace_back(text, size);
                if (present.size() > max_present) {
                    present.erase(present.begin());
                }
            }
        }
        open = end == nullptr;
        text += size + (end ? 1 : 0);
    }
    while (bytes > max_bytes && lines.size() > 1) {
        bytes -= lines.front().size();
        lines.pop_front();
    }
}

size_t log_buffer::take(char * out, size_t capacity) {
    std::lock_guard<std::mutex> lock(mutex);
    size_t                      written = 0;
    while (!lines.empty() && written + lines.front().size() <= capacity) {
        memcpy(out + written, lines.front().data(), lines.front().size());
        written += lines.front().size();
        bytes -= lines.front().size();
        lines.pop_front();
    }
    if (lines.empty()) {
        open = false;
    }
    return written;
}

std::string log_buffer::last_errors() const {
    std::lock_guard<std::mutex> lock(mutex);
    std::string                 joined;
    const size_t                first = present.size() > 4 ? present.size() - 4 : 0;
    for (size_t i = first; i < present.size(); i++) {
        joined += (joined.empty() ? "" : "; ") + present[i];
    }
    return joined;
}

bool log_buffer::said(const char * text) const {
    std::lock_guard<std::mutex> lock(mutex);
    return std::any_of(present.begin(), present.end(),
                       [&](const std::string & line) { return line.find(text) != std::string::npos; });
}

log_scope::log_scope(log_buffer & buffer) : before(current) {
    static std::once_flag once;
    std::call_once(once, [] { llama_log_set(callback, nullptr); });
    current = &buffer;
    buffer.begin_call();
}

log_scope::~log_scope() { current = before; }

} // namespace dgr

size_t dgr_log_take(dgr_engine * engine, char * out, size_t capacity) { return engine->log.take(out, capacity); }
