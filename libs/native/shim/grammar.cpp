// Grammars: what comes from a client is compiled within bounds, and llama.cpp is kept from what it would abort on.

#include "grammar.h"

#include "llama-vocab.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>

using dgr::failure;
using dgr::format;

namespace {

// Bounds, in elements and stacks that llama.cpp touches; it does some 20 to 100 million a second.
constexpr uint64_t compile_work = 1000000;
constexpr uint64_t accept_work  = 2000000;
constexpr uint64_t strike_work  = 4000000; // and more for large vocabularies
constexpr uint64_t token_work   = 64;      // for each candidate

constexpr size_t max_text = 1 << 20, max_prefill = 16 << 10, max_token_name = 256;
constexpr size_t max_patterns = 64, max_pattern = 1024, max_repeating_pattern = 128;
constexpr size_t max_anchored_text = 16 << 10, max_searched_text = 512;

[[noreturn]] void invalid(const std::string & why) { throw failure(DGR_INVALID_GRAMMAR, why); }

// spending bounds the work of llama.cpp's grammar functions on this thread while it lives.
struct spending {
    explicit spending(uint64_t work) { llama_grammar_set_budget(work); }
    ~spending() { llama_grammar_set_budget(UINT64_MAX); }
    spending(const spending &)             = delete;
    spending & operator=(const spending &) = delete;
};

// within runs body with a budget and makes INVALID_GRAMMAR of what llama.cpp throws.
template <typename F> auto within(uint64_t work, const char * what, F body) {
    try {
        spending bound(work);
        return body();
    } catch (const failure &) {
        throw;
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & e) {
        const std::string why = e.what();
        invalid(format("%s: %s", what, why.substr(0, 120).c_str()));
    }
}

// check_text finds in a grammar's text what the parser would choke on: zero bytes, and names of tokens without an end.
void check_text(const char * text, size_t size) {
    if (size == 0 || size > max_text) {
        invalid(format("the grammar has %zu bytes; it must have 1 to %zu", size, max_text));
    }
    if (memchr(text, 0, size) != nullptr) {
        invalid("the grammar holds a zero byte");
    }
    char inside = 0; // the character that ends what we are in
    for (size_t i = 0; i < size; i++) {
        const char c = text[i];
        if (inside != 0) {
            if (c == '\\' && inside != '\n') {
                i++;
            } else if (c == inside || (inside == '\n' && c == '\r')) {
                inside = 0;
            }
        } else if (c == '"') {
            inside = '"';
        } else if (c == '[') {
            inside = ']';
        } else if (c == '#') {
            inside = '\n';
        } else if (c == '<') {
            const size_t room = std::min(size - i, max_token_name);
            if (memchr(text + i, '>', room) == nullptr) {
                invalid(format("the token's name at byte %zu of the grammar does not end within %zu bytes", i, max_token_name));
            }
        }
    }
}

// check_rules parses the text once for a message of its own: llama.cpp's goes to the standard error.
void check_rules(const llama_vocab * vocab, const std::string & text) {
    llama_grammar_parser parser(vocab);
    const char *         pos = text.c_str();
    for (;;) {
        pos += strspn(pos, " \t\r\n");
        if (*pos == '#') {
            pos += strcspn(pos, "\r\n");
        } else if (*pos == 0) {
            break;
        } else {
            pos = parser.parse_rule(pos);
        }
    }
    if (parser.symbol_ids.count("root") == 0) {
        invalid("the grammar has no rule root");
    }
    for (const auto & symbol : parser.symbol_ids) {
        if (symbol.second >= parser.rules.size() || parser.rules[symbol.second].empty()) {
            invalid(format("the grammar speaks of a rule %s that it does not define", symbol.first.substr(0, 80).c_str()));
        }
    }
}

// check_pattern keeps from the library of regular expressions what takes it more than a little time or stack.
void check_pattern(const std::string & pattern) {
    bool repeats = false, inside = false;
    for (size_t i = 0; i < pattern.size(); i++) {
        const char c = pattern[i];
        if (c == '\\') {
            i++;
        } else if (inside) {
            inside = c != ']';
        } else if (c == '[') {
            inside = true;
        } else if (c == '{') {
            invalid(format("the trigger pattern %.80s counts repetitions; write them out", pattern.c_str()));
        } else if (c == '*' || c == '+') {
            repeats = true;
        }
    }
    const size_t most = repeats ? max_repeating_pattern : max_pattern;
    if (pattern.empty() || pattern.size() > most) {
        invalid(format("the trigger pattern %.80s has %zu bytes; it must have 1 to %zu", pattern.c_str(), pattern.size(), most));
    }
    if (pattern.find('\0') != std::string::npos) {
        invalid("a trigger pattern holds a zero byte");
    }
}

llama_grammar_trigger_pattern compile_pattern(const std::string & pattern) {
    check_pattern(pattern);
    auto flags = std::regex_constants::ECMAScript;
#ifdef __GLIBCXX__
    flags |= std::regex_constants::__polynomial; // neither recursion by the text's length nor exponential search
#endif
    try {
        return { pattern, std::regex(pattern, flags) };
    } catch (const std::regex_error & e) {
        invalid(format("the trigger pattern %.80s is no regular expression: %s", pattern.c_str(), e.what()));
    }
}

std::unique_ptr<llama_grammar, dgr::grammar_free> compile_rules(const llama_vocab * vocab, const std::string & text, bool lazy,
                                                                const std::vector<llama_token> & triggers) {
    return within(compile_work, "the grammar cannot be compiled", [&] {
        dgr::log_buffer log;
        dgr::log_scope  scope(log);
        check_rules(vocab, text);
        llama_grammar_set_budget(compile_work); // it is parsed again
        std::unique_ptr<llama_grammar, dgr::grammar_free> state(
            llama_grammar_init_impl(vocab, text.c_str(), "root", lazy, nullptr, 0, triggers.data(), triggers.size()));
        if (state == nullptr) {
            invalid("the grammar cannot be compiled: " + log.last_errors());
        }
        return state;
    });
}

// prefill_tokens are the tokens of text that stands in the prompt already.
std::vector<llama_token> prefill_tokens(const llama_vocab * vocab, const std::string & text) {
    std::vector<llama_token> ids(text.size() + 2);
    const int32_t            n = llama_tokenize(vocab, text.data(), int32_t(text.size()), ids.data(), int32_t(ids.size()), false, true);
    if (n < 0) {
        invalid("the grammar's prefill has too many tokens");
    }
    ids.resize(size_t(n));
    // Some tokenizers put a space before the first special token.
    auto blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
    if (!ids.empty() && blank(vocab->token_to_piece(ids[0])[0]) && !blank(text[0])) {
        ids.erase(ids.begin());
    }
    return ids;
}

// first_point is the code point that bytes begin with, or none where they do not begin with a whole one.
uint32_t first_point(const std::string & bytes) {
    static const uint8_t lengths[] = { 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 3, 4 };
    if (bytes.empty() || bytes[0] == 0) {
        return dgr::first_points::none;
    }
    const uint8_t first  = uint8_t(bytes[0]);
    const size_t  length = lengths[first >> 4];
    if (length == 0 || bytes.size() < length) {
        return dgr::first_points::none;
    }
    uint32_t point = length == 1 ? first : first & ((1u << (7 - length)) - 1);
    for (size_t i = 1; i < length; i++) {
        point = (point << 6) + (uint8_t(bytes[i]) & 0x3f);
    }
    return point == 0 ? dgr::first_points::none : point;
}

std::shared_ptr<const dgr::first_points> find_first_points(const llama_vocab * vocab) {
    auto                                   found = std::make_shared<dgr::first_points>();
    std::unordered_map<uint32_t, uint32_t> index;
    found->of_token.resize(vocab->n_tokens());
    for (uint32_t id = 0; id < vocab->n_tokens(); id++) {
        const uint32_t point = vocab->is_eog(llama_token(id)) ? dgr::first_points::none : first_point(vocab->token_to_piece(llama_token(id)));
        if (point == dgr::first_points::none) {
            found->of_token[id] = dgr::first_points::none;
            continue;
        }
        const auto at = index.emplace(point, uint32_t(found->points.size()));
        if (at.second) {
            found->points.push_back(point);
        }
        found->of_token[id] = at.first->second;
    }
    return found;
}

std::shared_ptr<const dgr::first_points> first_points_of(const dgr_engine & e, const llama_vocab * vocab) {
    std::call_once(e.first_points_once, [&] { e.first_points = find_first_points(vocab); });
    return e.first_points;
}

} // namespace

// restart goes back to before the answer.
void dgr_grammar::restart() {
    state->stacks           = start_stacks;
    state->partial_utf8     = start_partial;
    state->awaiting_trigger = state->lazy;
    state->trigger_buffer.clear();
    state->trigger_buffer_positions.clear();
    seen.clear();
    astray = false;
}

// shorten_buffer drops text that no pattern looks back on.
void dgr_grammar::shorten_buffer() {
    std::string & text = state->trigger_buffer;
    if (anchored) {
        if (text.size() > max_anchored_text) {
            invalid(format("the answer has more than %zu bytes before a trigger, and a pattern that begins with ^ looks no further", max_anchored_text));
        }
        return;
    }
    if (text.size() <= 2 * max_searched_text) {
        return;
    }
    const size_t drop = text.size() - max_searched_text;
    text.erase(0, drop);
    auto & positions = state->trigger_buffer_positions;
    positions.erase(positions.begin(), std::find_if(positions.begin(), positions.end(), [&](const auto & p) { return p.second.second > drop; }));
    for (auto & p : positions) {
        p.second.first  = p.second.first > drop ? p.second.first - drop : 0;
        p.second.second = p.second.second - drop;
    }
}

void dgr_grammar::accept(llama_token token) {
    if (state->awaiting_trigger) {
        llama_grammar_accept_impl(*state, token);
        if (state->awaiting_trigger) {
            shorten_buffer();
        }
        return;
    }
    if (state->vocab->is_eog(token)) {
        const auto & stacks = state->stacks;
        if (std::none_of(stacks.begin(), stacks.end(), [](const auto & stack) { return stack.empty(); })) {
            invalid("the answer ends before the grammar allows it");
        }
        return;
    }
    llama_grammar_accept_impl(*state, token);
}

void dgr_grammar::follow(const uint32_t * answer, size_t n) {
    if (astray || seen.size() > n || !std::equal(seen.begin(), seen.end(), answer)) {
        restart();
    }
    for (size_t i = seen.size(); i < n; i++) {
        if (answer[i] >= state->vocab->n_tokens()) {
            throw failure(DGR_MALFORMED, format("token %u is none of %u", answer[i], state->vocab->n_tokens()));
        }
        astray = true;
        within(accept_work, format("token %zu of the answer does not follow the grammar", i).c_str(), [&] { accept(llama_token(answer[i])); });
        seen.push_back(answer[i]);
        astray = false;
    }
}

// open_points says for each first code point whether a token that begins with it could come next.
std::vector<uint8_t> dgr_grammar::open_points() const {
    std::vector<uint32_t>    texts(2 * first->points.size(), 0); // each one code point and its end
    llama_grammar_candidates left;
    for (size_t i = 0; i < first->points.size(); i++) {
        texts[2 * i] = first->points[i];
        left.push_back({ i, &texts[2 * i], {}, LLAMA_TOKEN_NULL });
    }
    for (const auto & stack : state->stacks) {
        const bool by_token = !stack.empty() && (stack.back()->type == LLAMA_GRETYPE_TOKEN || stack.back()->type == LLAMA_GRETYPE_TOKEN_NOT);
        if (by_token) {
            return std::vector<uint8_t>(first->points.size(), 1);
        }
        left = llama_grammar_reject_candidates_for_stack(state->rules, stack, left);
    }
    std::vector<uint8_t> open(first->points.size(), 1);
    for (const auto & closed : left) {
        open[closed.index] = 0;
    }
    return open;
}

void dgr_grammar::strike(std::vector<llama_token_data> & candidates) {
    const uint64_t work = strike_work + token_work * candidates.size();
    within(work, "the grammar cannot be applied", [&] {
        asked.clear();
        // Where many are asked for, those are settled at once that begin with what cannot come.
        if (candidates.size() > 2 * first->points.size() && state->partial_utf8.n_remain == 0) {
            const auto open = open_points();
            for (const auto & c : candidates) {
                const uint32_t point = first->of_token[size_t(c.id)];
                if (point == dgr::first_points::none || open[point] != 0) {
                    asked.push_back(c);
                }
            }
        } else {
            asked = candidates;
        }
        llama_token_data_array array{ asked.data(), asked.size(), -1, false };
        llama_grammar_apply_impl(*state, &array);
        candidates.clear();
        std::copy_if(asked.begin(), asked.end(), std::back_inserter(candidates), [](const auto & c) { return c.logit > -INFINITY; });
    });
}

dgr_code dgr_grammar_compile(const dgr_engine * engine, const char * text, size_t size, uint32_t lazy, const char * prefill,
                             size_t prefill_size, const char * patterns, const size_t * pattern_sizes, uint32_t n_patterns,
                             const uint32_t * tokens, uint32_t n_tokens, dgr_grammar ** grammar, char * message, size_t message_size) {
    *grammar = nullptr;
    return dgr::guarded(message, message_size, [&] {
        const llama_vocab * vocab = llama_model_get_vocab(engine->model.get());
        check_text(text, size);
        if (n_patterns > max_patterns || n_tokens > max_patterns || prefill_size > max_prefill) {
            invalid(format("the grammar has %u trigger patterns, %u trigger tokens and a prefill of %zu bytes; it may have %zu, %zu and %zu",
                           n_patterns, n_tokens, prefill_size, max_patterns, max_patterns, max_prefill));
        }
        auto g   = std::make_unique<dgr_grammar>();
        g->state = compile_rules(vocab, std::string(text, size), lazy != 0, std::vector<llama_token>(tokens, tokens + n_tokens));
        for (uint32_t i = 0; i < n_patterns; patterns += pattern_sizes[i], i++) {
            g->state->trigger_patterns.push_back(compile_pattern(std::string(patterns, pattern_sizes[i])));
            g->anchored |= pattern_sizes[i] > 0 && patterns[0] == '^';
        }
        g->first = first_points_of(*engine, vocab);
        g->start_stacks = g->state->stacks;
        if (lazy == 0 && prefill_size > 0) {
            std::vector<uint32_t> ids;
            for (llama_token id : prefill_tokens(vocab, std::string(prefill, prefill_size))) {
                ids.push_back(uint32_t(id));
            }
            try {
                g->follow(ids.data(), ids.size());
            } catch (const failure & e) {
                invalid(std::string("the grammar does not allow its prefill: ") + e.what());
            }
            g->start_stacks  = g->state->stacks;
            g->start_partial = g->state->partial_utf8;
            g->seen.clear();
        }
        *grammar = g.release();
        return DGR_OK;
    });
}

void dgr_grammar_free(dgr_grammar * grammar) { delete grammar; }

dgr_code dgr_grammar_follow(dgr_grammar * grammar, const uint32_t * answer, size_t n_answer, char * message, size_t message_size) {
    return dgr::guarded(message, message_size, [&] {
        grammar->follow(answer, n_answer);
        return DGR_OK;
    });
}
