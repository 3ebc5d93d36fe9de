// sample_test DIRECTORY: choosing a token, against sums done by hand and against a plain chain of llama.cpp's samplers.
// Needs llama-untied.gguf in the directory.

#include "dgr_sample.h"

#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::string model;

void need(bool ok, const std::string & what) {
    if (!ok) {
        throw std::runtime_error(what);
    }
}

struct freeing {
    void operator()(dgr_engine * e) const { dgr_free(e); }
    void operator()(dgr_sampler * s) const { dgr_sampler_free(s); }
    void operator()(dgr_grammar * g) const { dgr_grammar_free(g); }
    void operator()(llama_model * m) const { llama_model_free(m); }
    void operator()(llama_sampler * s) const { llama_sampler_free(s); }
};
using engine  = std::unique_ptr<dgr_engine, freeing>;
using sampler = std::unique_ptr<dgr_sampler, freeing>;
using grammar = std::unique_ptr<dgr_grammar, freeing>;

engine loaded() {
    const dgr_load_params p{ 0, 0, 256, 1, 64, 32, 1, DGR_CACHE_F16, 1, 1 };
    const char *          paths[]      = { model.c_str() };
    char                  message[512] = "";
    dgr_engine *          e            = nullptr;
    need(dgr_load(paths, 1, &p, nullptr, 0, &e, message, sizeof(message)) == DGR_OK, message);
    return engine(e);
}

sampler new_sampler() {
    char          message[256] = "";
    dgr_sampler * s            = nullptr;
    need(dgr_sampler_new(&s, message, sizeof(message)) == DGR_OK, message);
    return sampler(s);
}

dgr_code compile(const engine & e, const std::string & text, grammar & out, std::string & message) {
    char           why[512] = "";
    dgr_grammar *  g        = nullptr;
    const dgr_code code     = dgr_grammar_compile(e.get(), text.data(), text.size(), 0, nullptr, 0, nullptr, nullptr, 0, nullptr, 0, &g, why, sizeof(why));
    out.reset(g);
    message = why;
    return code;
}

dgr_sampling greedy() {
    dgr_sampling s{};
    s.top_p = s.typical = s.repeat_penalty = 1;
    return s;
}

struct chosen {
    dgr_code                     code;
    dgr_choice                   choice;
    std::vector<dgr_alternative> alternatives;
    std::string                  message;
};

chosen choose(const std::vector<float> & logits, const std::vector<uint32_t> & tokens, dgr_sampling s, const std::vector<dgr_bias> & biases = {}, dgr_grammar * g = nullptr) {
    const sampler memory = new_sampler();
    chosen        out{};
    char          message[512] = "";
    out.alternatives.resize(s.alternatives);
    s.biases = uint32_t(biases.size());
    out.code = dgr_choose(memory.get(), logits.data(), uint32_t(logits.size()), tokens.data(), tokens.size(), &s, biases.data(), g,
                          &out.choice, out.alternatives.data(), message, sizeof(message));
    out.message = message;
    return out;
}

void test_greedy() {
    need(choose({ 1, 3, 2 }, {}, greedy()).choice.token == 1, "not the most probable");
    need(choose({ 1, 3, 3 }, {}, greedy()).choice.token == 1, "not the lowest of equals");
    need(choose({ 1, 3, 2 }, {}, greedy(), { { 1, -INFINITY } }).choice.token == 2, "a forbidden token");
    need(choose({ 1, 3, 2 }, {}, greedy(), { { 0, 1.5f }, { 0, 1.5f } }).choice.token == 0, "two biases of one token do not add up");
    need(choose({ 1, 2 }, {}, greedy(), { { 0, -INFINITY }, { 1, -INFINITY } }).code == DGR_MALFORMED, "everything is forbidden");
    dgr_sampling s   = greedy();
    s.repeat_penalty = 2;
    s.penalty_window = 2;
    need(choose({ 1, 3, 2 }, { 0, 1 }, s).choice.token == 2, "no penalty in the window");
    need(choose({ 1, 3, 2 }, { 1, 0, 0 }, s).choice.token == 1, "a penalty behind the window");
}

void test_values() {
    const auto refused = [](const char * what, const std::function<void(dgr_sampling &)> & change) {
        dgr_sampling s = greedy();
        change(s);
        need(choose({ 1, 2 }, {}, s).code == DGR_MALFORMED, what);
    };
    refused("temperature", [](dgr_sampling & s) { s.temperature = NAN; });
    refused("top_p", [](dgr_sampling & s) { s.top_p = 0; });
    refused("typical", [](dgr_sampling & s) { s.typical = 0; });
    refused("min_p", [](dgr_sampling & s) { s.min_p = 2; });
    refused("repeat_penalty", [](dgr_sampling & s) { s.repeat_penalty = 0; });
    refused("presence_penalty", [](dgr_sampling & s) { s.presence_penalty = NAN; });
    refused("answer_start", [](dgr_sampling & s) { s.answer_start = 1; });
    need(choose({ 1, 2 }, {}, greedy(), { { 2, 0 } }).code == DGR_MALFORMED, "a bias of no token");
    need(choose({ 1, 2 }, {}, greedy(), { { 0, INFINITY } }).code == DGR_MALFORMED, "an infinite bias");
    dgr_sampling s    = greedy();
    s.repeat_penalty  = 2;
    s.penalty_window  = 8;
    need(choose({ 1, 2 }, { 7 }, s).code == DGR_MALFORMED, "a token of no vocabulary");
}

// The draws over many seeds follow the distribution; a temperature that is nothing takes the best.
void test_distribution() {
    const std::vector<float> logits{ 0, std::log(2.0f), std::log(5.0f), -1000 };
    dgr_sampling             s = greedy();
    s.temperature              = 1;
    int       counts[4]        = {};
    const int n                = 8000;
    for (int i = 0; i < n; i++) {
        s.seed = uint64_t(i) * 7919;
        counts[choose(logits, std::vector<uint32_t>(size_t(i) % 20), s).choice.token]++;
    }
    const double shares[] = { 1.0 / 8, 2.0 / 8, 5.0 / 8, 0 };
    for (int id = 0; id < 4; id++) {
        need(std::fabs(counts[id] - n * shares[id]) <= 5 * std::sqrt(n * shares[id] * (1 - shares[id])), "token " + std::to_string(id) + " came " + std::to_string(counts[id]) + " times");
    }
    for (float tiny : { 1e-30f, 1e-45f }) {
        s.temperature = tiny;
        s.top_p       = 0.9f;
        need(choose(logits, {}, s).choice.token == 2, "a temperature of nothing");
    }
}

void test_logprobs() {
    const std::vector<float> logits{ 1, 3, 2, 3, -4 };
    const double             norm = std::log(std::exp(1) + 2 * std::exp(3) + std::exp(2) + std::exp(-4));
    dgr_sampling             s    = greedy();
    s.alternatives                = 3;
    const chosen got              = choose(logits, {}, s, { { 0, 9 } });
    need(got.choice.token == 0 && std::fabs(got.choice.logprob - (1 - norm)) < 1e-6, "not the model's own log-probability");
    const uint32_t order[] = { 1, 3, 2 };
    need(got.choice.alternatives == 3, "not three alternatives");
    for (int i = 0; i < 3; i++) {
        need(got.alternatives[size_t(i)].token == order[i] && std::fabs(got.alternatives[size_t(i)].logprob - (logits[order[i]] - norm)) < 1e-6, "alternative " + std::to_string(i));
    }
}

// Where the grammar is asked about the likeliest tokens first, and where first letters settle most, a plain chain says the same.
void test_grammar_against_a_plain_chain() {
    const engine e = loaded();
    dgr_info     info;
    dgr_info_get(e.get(), &info);
    llama_model_params params = llama_model_default_params();
    params.vocab_only         = true;
    const std::unique_ptr<llama_model, freeing> whole(llama_model_load_from_file(model.c_str(), params));
    const char * text = "root ::= (word \" \")+ \".\"\nword ::= [a-m]{1,3} | \"ü\" [n-z] | [0-9]+\n";
    grammar      g;
    std::string  why;
    need(compile(e, text, g, why) == DGR_OK, why);
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 4);
    for (uint32_t top_k : { 0u, 1u, 40u }) {
        const std::unique_ptr<llama_sampler, freeing> plain(llama_sampler_init_grammar(llama_model_get_vocab(whole.get()), text, "root"));
        std::vector<uint32_t> answer;
        for (int i = 0; i < 60; i++) {
            std::vector<float>            logits(info.vocab);
            std::vector<llama_token_data> all;
            for (uint32_t id = 0; id < info.vocab; id++) {
                logits[id] = normal(random);
                all.push_back({ llama_token(id), logits[id], 0 });
            }
            llama_token_data_array array{ all.data(), all.size(), -1, false };
            llama_sampler_apply(plain.get(), &array);
            const auto best = std::max_element(all.begin(), all.end(), [](const auto & a, const auto & b) { return a.logit < b.logit; });
            dgr_sampling s = greedy();
            s.top_k        = top_k;
            s.temperature  = top_k == 0 ? 0 : 1e-3f; // as good as greedy, by the other way
            const chosen got = choose(logits, answer, s, {}, g.get());
            need(got.code == DGR_OK, got.message);
            need(got.choice.token == uint32_t(best->id), "token " + std::to_string(got.choice.token) + ", a plain chain takes " + std::to_string(best->id));
            if (llama_vocab_is_eog(llama_model_get_vocab(whole.get()), best->id)) {
                break;
            }
            llama_sampler_accept(plain.get(), best->id);
            answer.push_back(got.choice.token);
        }
        need(answer.size() > 3, "the answer is too short to say anything");
    }
}

void test_grammar_codes() {
    const engine e = loaded();
    dgr_info     info;
    dgr_info_get(e.get(), &info);
    grammar     g;
    std::string why;
    for (const char * bad : { "", "root", "root ::= other", "start ::= \"a\"", "root ::= root \"a\"", "root ::= (", "root ::= \"a\"{1000000}" }) {
        need(compile(e, bad, g, why) == DGR_INVALID_GRAMMAR && !g && !why.empty(), std::string(bad) + " was taken");
    }
    need(compile(e, "root ::= \"a\"", g, why) == DGR_OK, why);
    const std::vector<float> flat(info.vocab, 0);
    const uint32_t           a = 3 + 'a'; // the byte's token
    need(choose(flat, { a + 1 }, greedy(), {}, g.get()).code == DGR_INVALID_GRAMMAR, "an answer that is none");
    need(choose(flat, { 2 }, greedy(), {}, g.get()).code == DGR_INVALID_GRAMMAR, "an answer that ends too soon");
    const chosen end = choose(flat, { a }, greedy(), {}, g.get());
    need(end.code == DGR_OK && dgr_ends_generation(e.get(), end.choice.token) == 1, "no end behind the last letter: " + end.message);
    need(choose(flat, { a }, greedy(), { { end.choice.token, -INFINITY } }, g.get()).code == DGR_INVALID_GRAMMAR, "something came where nothing may");
    need(choose(std::vector<float>(7, 0), {}, greedy(), {}, g.get()).code == DGR_MALFORMED, "a grammar of another vocabulary");

    dgr_choice     choice;
    const sampler  memory = new_sampler();
    dgr_sampling   s      = greedy();
    need(dgr_sample(e.get(), 0, memory.get(), nullptr, 0, &s, nullptr, nullptr, &choice, nullptr, nullptr, 0) == DGR_MALFORMED, "a row that is not there");
}

struct named {
    const char * name;
    void (*run)();
};

const named cases[] = {
    { "greedy", test_greedy },
    { "values", test_values },
    { "distribution", test_distribution },
    { "log-probabilities", test_logprobs },
    { "grammar against a plain chain", test_grammar_against_a_plain_chain },
    { "codes of grammars", test_grammar_codes },
};

} // namespace

int main(int argc, char ** argv) {
    const char * from      = getenv("DGR_TINY_MODELS");
    const std::string directory = from != nullptr && *from != 0 ? from : argc > 1 ? argv[1] : "";
    model                  = directory + "/llama-untied.gguf";
    int failed             = 0;
    for (const named & c : cases) {
        try {
            c.run();
            printf("ok    %s\n", c.name);
        } catch (const std::exception & e) {
            printf("FAIL  %s: %s\n", c.name, e.what());
            failed++;
        }
    }
    return failed == 0 ? 0 : 1;
}
