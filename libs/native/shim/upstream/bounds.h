// What a call of llama.cpp's chat code may take: templates are a model's, messages and schemas a client's, and neither is
// to be trusted with endless loops, all the memory or the stack.

#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace dgr {

struct bounds {
    double cpu;    // seconds of the calling thread
    size_t memory; // bytes that are held at once
};

// within runs body on a thread of its own, whose stack takes deep recursion, and returns when it has ended. It throws what
// body throws, or std::length_error with a sentence where body went beyond the bounds. A body that went beyond them is
// unwound by an exception out of operator new, whatever it was at.
void within(const bounds & bounds, const std::function<void()> & body);

// strict_schema makes schemas of which a grammar cannot say all an error while it lives, on this thread.
class strict_schema {
  public:
    strict_schema();
    ~strict_schema();
    strict_schema(const strict_schema &)             = delete;
    strict_schema & operator=(const strict_schema &) = delete;
};

// incomplete_schema is what the chat code says of such a schema. Throws std::invalid_argument where that is an error.
[[gnu::format(printf, 1, 2)]] void incomplete_schema(const char * pattern, ...);

} // namespace dgr
