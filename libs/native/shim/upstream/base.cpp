// What llama.cpp's chat code calls of common.cpp and log.cpp, written anew: those drag in sampling, downloads and a thread
// that prints.

#include "common.h"
#include "log.h"

#include "llama.h"

#include <cctype>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <stdexcept>

std::string string_format(const char * fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int   size = vsnprintf(nullptr, 0, fmt, args);
    std::string text(size > 0 ? size_t(size) + 1 : 1, 0);
    vsnprintf(&text[0], text.size(), fmt, again);
    va_end(again);
    va_end(args);
    text.pop_back();
    return text;
}

std::string string_strip(const std::string & text) {
    size_t begin = 0, end = text.size();
    while (begin < end && std::isspace(static_cast<unsigned char>(text[begin]))) {
        begin++;
    }
    while (end > begin && std::isspace(static_cast<unsigned char>(text[end - 1]))) {
        end--;
    }
    return text.substr(begin, end - begin);
}

std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string joined;
    for (size_t i = 0; i < values.size(); i++) {
        joined += (i > 0 ? separator : "") + values[i];
    }
    return joined;
}

std::vector<std::string> string_split(const std::string & text, const std::string & delimiter) {
    std::vector<std::string> parts;
    size_t                   begin = 0;
    for (size_t end; (end = text.find(delimiter, begin)) != std::string::npos; begin = end + delimiter.size()) {
        parts.push_back(text.substr(begin, end - begin));
    }
    parts.push_back(text.substr(begin));
    return parts;
}

std::string string_repeat(const std::string & text, size_t n) {
    std::string repeated;
    while (n-- > 0) {
        repeated += text;
    }
    return repeated;
}

void string_replace_all(std::string & text, const std::string & search, const std::string & replacement) {
    if (search.empty()) {
        return;
    }
    std::string out;
    size_t      begin = 0;
    for (size_t at; (at = text.find(search, begin)) != std::string::npos; begin = at + search.size()) {
        out.append(text, begin, at - begin).append(replacement);
    }
    text = out.append(text, begin, std::string::npos);
}

std::string regex_escape(const std::string & text) {
    std::string escaped;
    for (const char c : text) {
        if (std::string(".^$|()*+?[]{}\\").find(c) != std::string::npos) {
            escaped += '\\';
        }
        escaped += c;
    }
    return escaped;
}

std::vector<llama_token> common_tokenize(const llama_vocab * vocab, const std::string & text, bool add_special, bool parse_special) {
    if (text.size() > size_t(std::numeric_limits<int32_t>::max()) / 2) {
        throw std::runtime_error("a text is longer than 1 GiB");
    }
    std::vector<llama_token> ids(text.size() + 2);
    int32_t n = llama_tokenize(vocab, text.data(), int32_t(text.size()), ids.data(), int32_t(ids.size()), add_special, parse_special);
    if (n < 0 && n != std::numeric_limits<int32_t>::min()) {
        ids.resize(size_t(-n));
        n = llama_tokenize(vocab, text.data(), int32_t(text.size()), ids.data(), int32_t(ids.size()), add_special, parse_special);
    }
    if (n < 0) {
        throw std::runtime_error("a text has too many tokens");
    }
    ids.resize(size_t(n));
    return ids;
}

std::string common_token_to_piece(const llama_vocab * vocab, llama_token token, bool special) {
    std::string piece(64, 0);
    int32_t     n = llama_token_to_piece(vocab, token, &piece[0], int32_t(piece.size()), 0, special);
    if (n < 0) {
        piece.resize(size_t(-n));
        n = llama_token_to_piece(vocab, token, &piece[0], int32_t(piece.size()), 0, special);
    }
    piece.resize(size_t(n > 0 ? n : 0));
    return piece;
}

// Lines go where those of llama.cpp itself go.
struct common_log {};

int common_log_get_verbosity_thold(void) { return LOG_LEVEL_WARN; }

common_log * common_log_main() {
    static common_log log;
    return &log;
}

void common_log_add(common_log *, ggml_log_level level, const char * fmt, ...) {
    char    line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    ggml_log_callback callback = nullptr;
    void *            user     = nullptr;
    llama_log_get(&callback, &user);
    if (callback != nullptr) {
        callback(level, line, user);
    }
}
