// chat_test DIRECTORY: what the ABI promises of chats beside texts: bounds, threads, refusals, and grammars that llama.cpp
// takes. Needs llama-untied.gguf in the directory; writes models with other templates beside it.

#include "dgr_shim.h"

#include "bounds.h"

#include "ggml.h"
#include "gguf.h"
#include "json.h"
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

std::string directory;

void need(bool ok, const std::string & what) {
    if (!ok) {
        throw std::runtime_error(what);
    }
}

struct engine_free {
    void operator()(dgr_engine * e) const { dgr_free(e); }
};
using engine = std::unique_ptr<dgr_engine, engine_free>;

// with_template loads the tiny model with another chat template; NULL: none.
engine with_template(const char * text) {
    static int        number = 0;
    const std::string from = directory + "/llama-untied.gguf", to = directory + "/chat-" + std::to_string(number++) + ".gguf";
    ggml_context *    tensors = nullptr;
    gguf_context *    read    = gguf_init_from_file(from.c_str(), { false, &tensors });
    need(read != nullptr, "cannot read " + from);
    gguf_context * model = gguf_init_empty();
    gguf_set_kv(model, read);
    for (ggml_tensor * t = ggml_get_first_tensor(tensors); t != nullptr; t = ggml_get_next_tensor(tensors, t)) {
        if (gguf_find_tensor(read, t->name) >= 0) {
            gguf_add_tensor(model, t);
        }
    }
    if (text != nullptr) {
        gguf_set_val_str(model, "tokenizer.chat_template", text);
    }
    need(gguf_write_to_file(model, to.c_str(), false), "cannot write " + to);
    gguf_free(model);
    gguf_free(read);
    ggml_free(tensors);

    const dgr_load_params p{ 0, 1, 256, 1, 32, 32, 1, DGR_CACHE_F16, 1, 1, 0 };
    const char *          paths[]      = { to.c_str() };
    char                  message[512] = "";
    dgr_engine *          e            = nullptr;
    need(dgr_load(paths, 1, &p, nullptr, 0, &e, message, sizeof(message)) == DGR_OK, message);
    std::remove(to.c_str());
    return engine(e);
}

struct outcome {
    dgr_code    code;
    std::string text, message;
};

outcome take(dgr_code code, dgr_text * text, const char * message) {
    outcome o{ code, "", message };
    need((code == DGR_OK) == (text != nullptr), "a text goes with DGR_OK and nothing else");
    if (text != nullptr) {
        size_t       size  = 0;
        const char * bytes = dgr_text_bytes(text, &size);
        o.text.assign(bytes, size);
    }
    dgr_text_free(text);
    return o;
}

outcome render(const engine & e, const std::string & request) {
    char       message[512] = "";
    dgr_text * text         = nullptr;
    const auto code         = dgr_chat_render(e.get(), request.data(), request.size(), &text, message, sizeof(message));
    return take(code, text, message);
}

outcome parse(const engine & e, const std::string & parser, const std::string & generated, bool partial) {
    char       message[512] = "";
    dgr_text * text         = nullptr;
    const auto code = dgr_chat_parse(e.get(), parser.data(), parser.size(), generated.data(), generated.size(), partial, &text, message, sizeof(message));
    return take(code, text, message);
}

const char * const plain  = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
const char * const hello  = R"({"messages":"[{\"role\":\"user\",\"content\":\"hi\"}]","generate":true})";
const char * const schema = R"({"messages":"[{\"role\":\"user\",\"content\":\"hi\"}]","generate":true,"schema":"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"})";

void renders_and_parses() {
    const engine  e = with_template(plain);
    const outcome o = render(e, hello);
    need(o.code == DGR_OK, o.message);
    const auto answer = common_json::parse(o.text);
    need(answer.at("prompt").get<std::string>() == "<user>hi\n<assistant>", o.text);
    need(answer.at("tokens").at(0) == 1 && answer.at("tokens").at(1) != 1, "one BOS is wanted: " + o.text);
    const outcome m = parse(e, answer.at("parser").get<std::string>(), "hello", false);
    need(m.code == DGR_OK && common_json::parse(m.text).at("content") == "hello", m.message + m.text);
}

void refuses() {
    need(render(with_template(nullptr), hello).code == DGR_NO_TEMPLATE, "a model without template renders");
    need(render(with_template("{% for %}"), hello).code == DGR_NO_TEMPLATE, "a broken template renders");
    const engine e = with_template(plain);
    for (const char * request : { "", "{", "{}", "[]", R"({"messages":7,"generate":true})", R"({"messages":"[]","generate":true})", R"({"messages":"[]"})" }) {
        need(render(e, request).code == DGR_MALFORMED, request);
        need(parse(e, request, "hello", false).code == DGR_MALFORMED, request);
    }
    need(render(with_template("{{ raise_exception('not so') }}"), hello).message.find("not so") != std::string::npos, "what the template says is lost");
}

// A grammar that RenderChat gives is one that the samplers take.
void grammars_compile() {
    const engine  e = with_template(plain);
    const outcome o = render(e, schema);
    need(o.code == DGR_OK, o.message);
    const auto    text    = common_json::parse(o.text).at("grammar").at("text").get<std::string>();
    llama_sampler * grammar = llama_sampler_init_grammar(nullptr, text.c_str(), "root");
    need(grammar != nullptr, "llama.cpp refuses the grammar " + text);
    llama_sampler_free(grammar);
}

void from_threads() {
    const engine             e    = with_template(plain);
    const std::string        want = render(e, hello).text;
    std::vector<std::thread> threads;
    std::vector<std::string> got(4);
    for (auto & g : got) {
        threads.emplace_back([&] {
            for (int i = 0; i < 3; i++) {
                g = render(e, hello).text;
            }
        });
    }
    for (auto & t : threads) {
        t.join();
    }
    for (const auto & g : got) {
        need(g == want, "threads differ: " + g);
    }
}

const void * volatile seen; // keeps allocations from being left out

std::string beyond(const dgr::bounds & bounds, const std::function<void()> & body) {
    try {
        dgr::within(bounds, body);
    } catch (const std::length_error & e) {
        return e.what();
    }
    return "";
}

size_t deep(size_t n) {
    const std::string frame(64, char('a' + n % 16)); // allocates
    return n == 0 ? frame.size() : deep(n - 1) + frame.size();
}

void bounds_hold() {
    const dgr::bounds some{ 0.2, size_t(8) << 20 };
    need(beyond(some, [] {}).empty(), "nothing is too much");
    need(beyond(some, [] {
             for (int i = 0; i < 1000; i++) { // one after the other is not at once
                 std::vector<char> v(1 << 20);
                 seen = v.data();
             }
         }).empty(),
         "what was given back counts");
    need(beyond(some, [] {
             std::vector<std::unique_ptr<char[]>> all;
             for (;;) {
                 all.emplace_back(new char[1000]);
             }
         }) == "it takes too much memory",
         "memory has no bound");
    need(beyond(some, [] {
             for (;;) {
                 const auto p = std::make_unique<int>(1);
                 seen         = p.get();
             }
         }) == "it takes too long",
         "time has no bound");
    need(beyond({ 10, size_t(4) << 30 }, [] { deep(100'000'000); }) == "it nests too deep", "the stack has no bound");
    need(beyond(some, [] { // who swallows the exception is told again
             for (int i = 0; i < 3; i++) {
                 try {
                     std::vector<char> v(size_t(1) << 30);
                     seen = v.data();
                 } catch (const std::exception &) {
                 }
             }
         }) == "it takes too much memory",
         "a swallowed exception is no overrun");
    bool thrown = false;
    try {
        dgr::within(some, [] { throw std::out_of_range("mine"); });
    } catch (const std::out_of_range &) {
        thrown = true;
    }
    need(thrown, "an exception of the body is lost");
}

} // namespace

int main(int argc, char ** argv) {
    const char * variable = std::getenv("DGR_TINY_MODELS");
    directory             = variable != nullptr && *variable != 0 ? variable : argc > 1 ? argv[1] : "";
    const struct {
        const char * name;
        void (*run)();
    } tests[] = { { "renders_and_parses", renders_and_parses }, { "refuses", refuses }, { "grammars_compile", grammars_compile },
                  { "from_threads", from_threads }, { "bounds_hold", bounds_hold } };
    int failed = 0;
    for (const auto & t : tests) {
        try {
            t.run();
            printf("ok   %s\n", t.name);
        } catch (const std::exception & e) {
            printf("FAIL %s: %s\n", t.name, e.what());
            failed++;
        }
    }
    return failed > 0;
}
