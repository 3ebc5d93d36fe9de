// Chats: llama.cpp's chat code over the template in the model's header. Each call runs within bounds on a thread of its own
// and touches nothing of the engine but its vocabulary and the template, which it reads once.

#include "chat_request.h"

#include "bounds.h"

#include <cstring>
#include <list>

using dgr::failure;
using dgr::format;

namespace {

// A call that goes beyond them is one that somebody made to: the slowest of the templates of the pin takes a hundredth.
constexpr dgr::bounds call_bounds = { 10, size_t(512) << 20 };

constexpr size_t max_template    = 128 * 1024;
constexpr size_t max_nesting     = 1000; // of brackets in a template
constexpr size_t max_text_depth  = 2000; // of brackets in an answer
constexpr size_t max_grammar     = 1 << 20;
constexpr size_t max_triggers    = 64;
constexpr size_t max_output      = size_t(64) << 20;
constexpr size_t parsers_kept    = 16;
constexpr size_t worth_replacing = 256; // bytes of messages

} // namespace

namespace dgr {

// answer_parser reads the answers to one kind of request.
struct answer_parser {
    common_chat_parser_params params;
    std::string               call_id; // begins the ids of tool calls that the model gave none
};

struct chat {
    std::mutex                mutex;
    common_chat_templates_ptr templates;
    std::string               refusal; // why there are none, once looked for
    bool                      looked = false;

    // By the handle that dgr_chat_render gave; the latest used first.
    std::list<std::pair<std::string, std::shared_ptr<const answer_parser>>> parsers;
};

void chat_free::operator()(chat * c) const {
    try {
        within({ 60, size_t(1) << 40 }, [&] { c->templates.reset(); }); // as deep as the template nests
    } catch (...) {
        c->templates.release(); // memory lost is better than a stack that ends
    }
    delete c;
}

std::unique_ptr<chat, chat_free> new_chat() { return std::unique_ptr<chat, chat_free>(new chat); }

bool has_template(const llama_model * model) {
    for (const char * key : { "tokenizer.chat_template", "tokenizer.chat_template.tool_use" }) {
        // llama_model_chat_template makes one up for a model that it knows
        if (llama_model_meta_val_str(model, key, nullptr, 0) > 0) {
            return true;
        }
    }
    return false;
}

} // namespace dgr

namespace {

common_chat_templates_ptr read_templates(const llama_model * model) {
    for (const char * name : { static_cast<const char *>(nullptr), "tool_use" }) {
        const char * text = llama_model_chat_template(model, name);
        if (text != nullptr && strlen(text) > max_template) {
            throw failure(DGR_NO_TEMPLATE, format("it is longer than %zu bytes", max_template));
        }
        if (text != nullptr && dgr::nesting(text, false) > max_nesting) {
            throw failure(DGR_NO_TEMPLATE, format("its brackets nest deeper than %zu", max_nesting));
        }
    }
    return common_chat_templates_init(model, "");
}

// templates_of reads the templates at the first call.
const common_chat_templates & templates_of(const dgr_engine & e) {
    dgr::chat &                 c = *e.chat;
    std::lock_guard<std::mutex> lock(c.mutex);
    if (!c.looked) {
        c.looked = true;
        dgr::log_buffer said;
        dgr::log_scope  scope(said);
        try {
            if (!dgr::has_template(e.model.get())) {
                c.refusal = "the model's header has no chat template";
            } else {
                dgr::within(call_bounds, [&] {
                    dgr::log_scope inner(said);
                    c.templates = read_templates(e.model.get());
                });
            }
        } catch (const std::exception & error) {
            // upstream slices its exceptions, and says in the log what is wrong
            const std::string lines = said.last_errors();
            c.refusal = "the model's chat template cannot be read: " + dgr::shorten(lines.empty() ? error.what() : lines);
        }
    }
    if (!c.templates) {
        throw failure(DGR_NO_TEMPLATE, c.refusal);
    }
    return *c.templates;
}

// apply renders a request.
common_chat_params apply(const common_chat_templates & templates, const dgr::chat_request & r) {
    const auto inputs = dgr::inputs_of(templates, r);
    return dgr::stage(DGR_MALFORMED, "the model's chat template refuses this: ", [&] { return common_chat_templates_apply(&templates, inputs); });
}

// same says whether two requests' answers are read alike.
bool same(const common_chat_params & a, const common_chat_params & b) {
    return a.format == b.format && a.generation_prompt == b.generation_prompt && a.parser == b.parser;
}

// handle_of is the request without what reading its answers does not need: often the messages.
std::string handle_of(const common_chat_templates & templates, const dgr::chat_request & request, const common_chat_params & params) {
    dgr::chat_request r = request;
    r.call_id           = dgr::call_id(params.prompt);
    if (r.messages.size() > worth_replacing) {
        try {
            r.messages = R"([{"role":"user","content":"a"}])";
            if (!same(params, apply(templates, r))) {
                r.messages = request.messages;
            }
        } catch (const failure &) {
            r.messages = request.messages;
        }
    }
    return dgr::write_request(r);
}

common_json grammar_of(const llama_vocab * vocab, const common_chat_params & params) {
    auto patterns = common_json::array(), tokens = common_json::array();
    for (const auto & trigger : params.grammar_triggers) {
        const std::string & v = trigger.value;
        switch (trigger.type) {
            case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN: tokens.push_back(trigger.token); break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_WORD: {
                const auto ids = common_tokenize(vocab, v, false, true);
                if (ids.size() == 1) {
                    tokens.push_back(ids[0]);
                } else {
                    patterns.push_back(regex_escape(v));
                }
                break;
            }
            case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN: patterns.push_back(v); break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL:
                patterns.push_back((v.empty() || v.front() != '^' ? "^" : "") + v + (v.empty() || v.back() != '$' ? "$" : ""));
                break;
        }
    }
    if (params.grammar.size() > max_grammar || patterns.size() > max_triggers || tokens.size() > max_triggers) {
        throw failure(DGR_INVALID_GRAMMAR, format("the grammar has %zu bytes, %zu patterns and %zu tokens; %zu, %zu and %zu are the most: give fewer tools or a smaller schema",
                                                  params.grammar.size(), patterns.size(), tokens.size(), max_grammar, max_triggers, max_triggers));
    }
    auto grammar        = common_json::object();
    grammar["text"]     = params.grammar;
    grammar["lazy"]     = params.grammar_lazy;
    grammar["patterns"] = patterns;
    grammar["tokens"]   = tokens;
    grammar["prefill"]  = params.grammar_lazy ? "" : params.generation_prompt;
    return grammar;
}

std::string render(const dgr_engine & e, const common_chat_templates & templates, const std::string & request) {
    const auto r      = dgr::read_request(request);
    const auto params = apply(templates, r);
    if (params.prompt.size() > max_output) {
        throw failure(DGR_MALFORMED, format("the model's chat template writes more than %zu bytes", max_output));
    }
    const llama_vocab * vocab  = llama_model_get_vocab(e.model.get());
    auto                answer = common_json::object();
    answer["prompt"]           = params.prompt;
    answer["tokens"]           = common_json_value(dgr::tokenize(vocab, params.prompt.data(), params.prompt.size(), true, true));
    if (!params.grammar.empty()) {
        answer["grammar"] = grammar_of(vocab, params);
    }
    answer["stops"]  = common_json_value(params.additional_stops);
    answer["parser"] = handle_of(templates, r, params);
    return dgr::stage(DGR_MALFORMED, "the model's chat template writes no UTF-8: ", [&] { return answer.dump(); });
}

std::shared_ptr<const dgr::answer_parser> parser_of(dgr::chat & c, const std::string & handle) {
    {
        std::lock_guard<std::mutex> lock(c.mutex);
        for (auto it = c.parsers.begin(); it != c.parsers.end(); ++it) {
            if (it->first == handle) {
                c.parsers.splice(c.parsers.begin(), c.parsers, it);
                return it->second;
            }
        }
    }
    const auto r      = dgr::read_request(handle);
    const auto params = apply(*c.templates, r);
    auto       made   = std::make_shared<dgr::answer_parser>();
    made->params                  = common_chat_parser_params(params);
    made->params.reasoning_format = dgr::reasoning_format;
    made->params.parse_tool_calls = !r.tools.empty() && r.tool_choice != "none";
    made->call_id                 = r.call_id;
    if (!params.parser.empty()) {
        made->params.parser.load(params.parser);
    }
    std::lock_guard<std::mutex> lock(c.mutex);
    c.parsers.emplace_front(handle, made);
    if (c.parsers.size() > parsers_kept) {
        c.parsers.pop_back();
    }
    return made;
}

std::string parse(dgr::chat & c, const std::string & handle, const std::string & text, bool partial) {
    if (dgr::nesting(text, false) > max_text_depth) {
        throw failure(DGR_MALFORMED, format("text: its brackets nest deeper than %zu", max_text_depth));
    }
    const auto parser  = parser_of(c, handle);
    auto       message = dgr::stage(DGR_MALFORMED, "text: ", [&] { return common_chat_parse(text, partial, parser->params); });
    for (size_t i = 0; i < message.tool_calls.size(); i++) {
        if (message.tool_calls[i].id.empty()) {
            message.tool_calls[i].id = dgr::call_id(parser->call_id + format("/%zu", i));
        }
    }
    return message.to_json_oaicompat().dump_safe();
}

// answer runs one call within its bounds and keeps what it gives for the caller.
template <typename F> dgr_code answer(const dgr_engine * engine, dgr_text ** text, char * message, size_t message_size, F body) {
    *text = nullptr;
    return dgr::guarded(message, message_size, [&] {
        const auto & templates = templates_of(*engine);
        auto         out       = std::make_unique<dgr_text>();
        try {
            dgr::within(call_bounds, [&] {
                dgr::log_buffer said;
                dgr::log_scope  scope(said);
                out->bytes = body(templates);
            });
        } catch (const std::length_error & beyond) {
            throw failure(DGR_MALFORMED, std::string("the model's chat template, or what is asked of it, was stopped: ") + beyond.what());
        }
        *text = out.release();
        return DGR_OK;
    });
}

} // namespace

dgr_code dgr_chat_render(const dgr_engine * engine, const char * request, size_t size, dgr_text ** text, char * message, size_t message_size) {
    return answer(engine, text, message, message_size,
                  [&](const common_chat_templates & templates) { return render(*engine, templates, std::string(request, size)); });
}

dgr_code dgr_chat_parse(const dgr_engine * engine, const char * parser, size_t parser_size, const char * generated, size_t generated_size,
                        uint32_t partial, dgr_text ** text, char * message, size_t message_size) {
    return answer(engine, text, message, message_size, [&](const common_chat_templates &) {
        return parse(*engine->chat, std::string(parser, parser_size), std::string(generated, generated_size), partial != 0);
    });
}

const char * dgr_text_bytes(const dgr_text * text, size_t * size) {
    *size = text->bytes.size();
    return text->bytes.data();
}

void dgr_text_free(dgr_text * text) { delete text; }
