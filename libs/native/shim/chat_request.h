// What a chat is asked for: the request as it comes from Go and goes out again as the handle of a parser. Part of no ABI.

#pragma once

#include "internal.h"

#include "chat.h"
#include "json.h"

namespace dgr {

// What llama-server does by default.
constexpr common_reasoning_format reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;

// chat_request is a conversation and what is wanted of the answer. Texts are JSON where their names in the contract say so.
struct chat_request {
    std::string messages;
    std::string tools; // empty: none
    std::string tool_choice;
    std::string schema;    // empty: none
    std::string arguments; // empty: none
    bool        generate = true;
    std::string call_id; // in handles only
};

// read_request reads what write_request writes, from whomever. Throws failure(DGR_MALFORMED).
chat_request read_request(const std::string & text);
std::string  write_request(const chat_request & r);

// inputs_of checks a request and makes of it what the chat code takes. Throws failure, which names the field.
common_chat_templates_inputs inputs_of(const common_chat_templates & templates, const chat_request & r);

// call_id is nine letters and digits, which is what the strictest templates take, made of text.
std::string call_id(const std::string & text);

// nesting is how deep brackets nest in a text; those in the strings of JSON do not count.
size_t nesting(const std::string & text, bool json);

// shorten makes one sentence of what the template language says over many lines.
std::string shorten(const std::string & error);

// stage runs body and makes whatever it throws a failure that begins with what.
template <typename F> auto stage(dgr_code code, const std::string & what, F body) -> decltype(body()) {
    try {
        return body();
    } catch (const failure &) {
        throw;
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & e) {
        throw failure(code, what + shorten(e.what()));
    }
}

} // namespace dgr
