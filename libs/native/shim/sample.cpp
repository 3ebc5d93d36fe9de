// Choosing a token. llama.cpp's samplers weigh the candidates; which of them they see, in what order, and the last draw
// are settled here, so that the choice depends on nothing but its arguments.

#include "grammar.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

using dgr::failure;
using dgr::format;

struct dgr_sampler {
    std::vector<float>            logits;     // the model's, with penalties and biases
    std::vector<llama_token_data> changed;    // tokens that penalties or biases change, by id
    std::vector<llama_token_data> candidates; // what may still be chosen
    std::vector<llama_token_data> block;      // the same in another order
    std::vector<double>           weights;    // of the candidates
};

namespace {

constexpr uint32_t max_biases = 1024, max_alternatives = 20;

// Tokens that are this much less likely than the best, in natural logarithms, have together less than 2⁻⁵³ of the
// probability, the grain of the draw, for every vocabulary of up to 2³² tokens.
constexpr float negligible = 60;

// The number of best tokens up to which they are picked by insertion.
constexpr size_t few = 512;

// How many of the best are put in order before it is known how many top-p needs.
constexpr size_t front = 1024;

struct sampler_free {
    void operator()(llama_sampler * s) const { llama_sampler_free(s); }
};
using sampler = std::unique_ptr<llama_sampler, sampler_free>;

sampler new_chain() {
    llama_sampler_chain_params params = llama_sampler_chain_default_params();
    params.no_perf                    = true;
    return sampler(llama_sampler_chain_init(params));
}

void apply(const sampler & s, std::vector<llama_token_data> & candidates, bool sorted) {
    llama_token_data_array array{ candidates.data(), candidates.size(), -1, sorted };
    llama_sampler_apply(s.get(), &array);
    candidates.resize(array.size);
}

// likelier orders likeliest first, the lower id among equals.
bool likelier(const llama_token_data & a, const llama_token_data & b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

bool by_id(const llama_token_data & a, const llama_token_data & b) { return a.id < b.id; }

// put_in_order is a sampler that sorts: those of llama.cpp leave the order of equals to the standard library.
void put_in_order(llama_sampler * /*smpl*/, llama_token_data_array * array) {
    std::sort(array->data, array->data + array->size, likelier);
    array->sorted = true;
}

// make_best_zero is a sampler that takes the greatest logit from all, so that no temperature makes it infinite.
void make_best_zero(llama_sampler * /*smpl*/, llama_token_data_array * array) {
    float best = -FLT_MAX;
    for (size_t i = 0; i < array->size; i++) {
        best = std::max(best, array->data[i].logit);
    }
    for (size_t i = 0; i < array->size; i++) {
        array->data[i].logit -= best;
    }
}

using apply_function = void (*)(llama_sampler *, llama_token_data_array *);

// own_sampler makes a sampler of a function. The interface must live as long.
llama_sampler * own_sampler(llama_sampler_i & iface, apply_function function) {
    iface       = {};
    iface.name  = [](const llama_sampler *) { return "dgr"; };
    iface.apply = function;
    return llama_sampler_init(&iface, nullptr);
}

// uniform is the number in [0, 1) that the draw at a position uses: output number position+1 of SplitMix64 for the seed, cut
// to 53 bits.
double uniform(uint64_t seed, uint64_t position) {
    uint64_t z = seed + 0x9e3779b97f4a7c15u * (position + 1);
    z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z          = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return double((z ^ (z >> 31)) >> 11) / double(uint64_t(1) << 53);
}

void check(const dgr_sampling & p, const dgr_bias * biases, uint32_t vocab, size_t n_tokens) {
    // Written so that NaN fails.
    const bool ok = p.temperature >= 0 && p.temperature <= FLT_MAX && p.top_p > 0 && p.top_p <= 1 && p.min_p >= 0 && p.min_p <= 1 &&
                    p.typical > 0 && p.typical <= 1 && p.repeat_penalty > 0 && p.repeat_penalty <= FLT_MAX &&
                    std::fabs(p.frequency_penalty) <= 2 && std::fabs(p.presence_penalty) <= 2 && p.biases <= max_biases &&
                    p.alternatives <= max_alternatives && vocab > 0 && p.answer_start <= n_tokens;
    if (!ok) {
        throw failure(DGR_MALFORMED, "a value of the sampling is out of range");
    }
    for (uint32_t i = 0; i < p.biases; i++) {
        if (biases[i].token >= vocab || !(biases[i].bias <= FLT_MAX)) {
            throw failure(DGR_MALFORMED, format("bias %u is of no token of %u, or neither finite nor −Inf", i, vocab));
        }
    }
}

// choosing is one choice.
struct choosing {
    dgr_sampler &        s;
    const float *        raw; // the model's logits
    const uint32_t       vocab;
    const uint32_t *     tokens;
    const size_t         n_tokens;
    const dgr_sampling & p;
    const dgr_bias *     biases;
    dgr_grammar *        grammar;

    uint32_t choose();
    void     report(dgr_choice & choice, dgr_alternative * alternatives);

  private:
    void   change();
    void   pick(const float * logits, size_t n, float floor, std::vector<llama_token_data> & out) const;
    void   above(float floor);
    void   allowed(size_t n);
    void   truncate(bool ordered);
    float  distance() const;
    size_t order_front(size_t n);

    uint32_t draw();
};

// change applies penalties and biases: to the tokens that they concern, which are few.
void choosing::change() {
    s.logits.assign(raw, raw + vocab);
    s.changed.clear();
    const size_t     window    = std::min<size_t>(n_tokens, p.penalty_window);
    const uint32_t * seen      = tokens + (n_tokens - window);
    const bool       penalised = window > 0 && (p.repeat_penalty != 1 || p.frequency_penalty != 0 || p.presence_penalty != 0);
    auto             add       = [&](uint32_t id) {
        if (id >= vocab) {
            throw failure(DGR_MALFORMED, format("token %u is none of %u", id, vocab));
        }
        s.changed.push_back({ llama_token(id), raw[id], 0 });
    };
    for (size_t i = 0; penalised && i < window; i++) {
        add(seen[i]);
    }
    for (uint32_t i = 0; i < p.biases; i++) {
        add(biases[i].token);
    }
    if (s.changed.empty()) {
        return;
    }
    std::sort(s.changed.begin(), s.changed.end(), by_id);
    s.changed.erase(std::unique(s.changed.begin(), s.changed.end(), [](const auto & a, const auto & b) { return a.id == b.id; }), s.changed.end());

    const sampler chain = new_chain();
    if (penalised) {
        llama_sampler_chain_add(chain.get(), llama_sampler_init_penalties(int32_t(vocab), int32_t(window), p.repeat_penalty, p.frequency_penalty, p.presence_penalty));
    }
    // One entry for a token: of several the sampler takes the first.
    std::vector<llama_logit_bias> sums;
    for (uint32_t i = 0; i < p.biases; i++) {
        const llama_token id = llama_token(biases[i].token);
        const auto        at = std::find_if(sums.begin(), sums.end(), [&](const auto & b) { return b.token == id; });
        if (at != sums.end()) {
            at->bias += biases[i].bias;
        } else {
            sums.push_back({ id, biases[i].bias });
        }
    }
    llama_sampler_chain_add(chain.get(), llama_sampler_init_logit_bias(int32_t(vocab), int32_t(sums.size()), sums.data()));
    for (size_t i = 0; penalised && i < window; i++) {
        llama_sampler_accept(chain.get(), llama_token(seen[i]));
    }
    apply(chain, s.changed, false);
    for (const auto & c : s.changed) {
        s.logits[size_t(c.id)] = std::min(c.logit, FLT_MAX);
    }
}

// pick fills out with the n likeliest tokens of floor or more, likeliest first.
void choosing::pick(const float * logits, size_t n, float floor, std::vector<llama_token_data> & out) const {
    out.clear();
    if (n > few) {
        for (uint32_t id = 0; id < vocab; id++) {
            if (logits[id] >= floor) {
                out.push_back({ llama_token(id), logits[id], 0 });
            }
        }
        if (n < out.size()) {
            std::nth_element(out.begin(), out.begin() + ptrdiff_t(n), out.end(), likelier);
            out.resize(n);
        }
        std::sort(out.begin(), out.end(), likelier);
        return;
    }
    out.reserve(n + 1);
    for (uint32_t id = 0; id < vocab; id++) {
        // Ids ascend: an equal one behind the last comes too late.
        if (!(logits[id] >= floor) || (out.size() == n && logits[id] <= out.back().logit)) {
            continue;
        }
        const llama_token_data c{ llama_token(id), logits[id], 0 };
        out.insert(std::upper_bound(out.begin(), out.end(), c, likelier), c);
        if (out.size() > n) {
            out.pop_back();
        }
        if (out.size() == n) {
            floor = out.back().logit;
        }
    }
}

// distance is how far below the best a logit may be and count.
float choosing::distance() const {
    // What truncates does so at temperature 1, where such a token is in no share; and it would be NaN in the typical one.
    return p.top_p < 1 || p.typical < 1 ? negligible : negligible * std::max(1.0f, p.temperature);
}

// above makes the candidates those of floor or more, in order of ids.
void choosing::above(float floor) {
    s.candidates.clear();
    for (uint32_t id = 0; id < vocab; id++) {
        if (s.logits[id] >= floor) {
            s.candidates.push_back({ llama_token(id), s.logits[id], 0 });
        }
    }
}

// allowed makes the candidates the n likeliest that the grammar allows, likeliest first; with n 0 all of them, in order of
// ids. Where n is small the grammar is asked about some of the likeliest first, which is often enough.
void choosing::allowed(size_t n) {
    const size_t some = 4 * n + 12;
    s.candidates.clear();
    if (n > 0 && some <= few) {
        pick(s.logits.data(), some, -FLT_MAX, s.candidates);
        grammar->strike(s.candidates);
    }
    if (n == 0 || s.candidates.size() < n) {
        above(-FLT_MAX);
        grammar->strike(s.candidates);
        if (n > 0) {
            std::partial_sort(s.candidates.begin(), s.candidates.begin() + ptrdiff_t(std::min(n, s.candidates.size())), s.candidates.end(), likelier);
        }
    }
    if (n > 0) {
        s.candidates.resize(std::min(n, s.candidates.size()));
    }
    if (s.candidates.empty()) {
        throw failure(DGR_INVALID_GRAMMAR, "the grammar allows no token here that the vocabulary has and the biases leave");
    }
}

// order_front puts the n likeliest candidates first, likeliest first, and leaves the others behind them in order of ids. It
// returns how many are in order.
size_t choosing::order_front(size_t n) {
    n = std::min(n, s.candidates.size());
    s.block = s.candidates;
    std::nth_element(s.block.begin(), s.block.begin() + ptrdiff_t(n - 1), s.block.end(), likelier);
    const llama_token_data last = s.block[n - 1];
    s.block.resize(n);
    std::sort(s.block.begin(), s.block.end(), likelier);
    std::copy_if(s.candidates.begin(), s.candidates.end(), std::back_inserter(s.block), [&](const auto & c) { return likelier(last, c); });
    s.candidates.swap(s.block);
    return n;
}

// truncate leaves of the candidates those that are drawn from; ordered says that they stand likeliest first.
void choosing::truncate(bool ordered) {
    llama_sampler_i order, zero;
    const sampler   chain = new_chain();
    auto            add   = [&](llama_sampler * link) { llama_sampler_chain_add(chain.get(), link); };
    if (ordered && p.top_k > 0) {
        add(llama_sampler_init_top_k(int32_t(std::min<uint32_t>(p.top_k, INT32_MAX))));
    }
    add(llama_sampler_init_typical(p.typical, 1));
    if (p.typical < 1 && p.top_p < 1) {
        add(own_sampler(order, put_in_order));
    }
    add(llama_sampler_init_top_p(p.top_p, 1));
    add(llama_sampler_init_min_p(p.min_p, 1));
    add(own_sampler(zero, make_best_zero));
    add(llama_sampler_init_temp(p.temperature));

    if (ordered || (p.typical == 1 && p.top_p == 1)) {
        apply(chain, s.candidates, ordered);
        return;
    }
    if (p.typical < 1) { // it looks for the best at the front, and orders the others its own way
        order_front(1);
        apply(chain, s.candidates, true);
        return;
    }
    // top-p needs the likeliest in order, and the sum of all.
    const std::vector<llama_token_data> all = s.candidates;
    const size_t                        n   = order_front(front);
    const bool                          few_enough = n == all.size();
    apply(chain, s.candidates, true);
    if (!few_enough && s.candidates.size() > n) {
        s.candidates = all;
        order_front(all.size());
        apply(chain, s.candidates, true);
    }
}

// draw picks a token by its share of what is left.
uint32_t choosing::draw() {
    if (!std::is_sorted(s.candidates.begin(), s.candidates.end(), by_id)) {
        std::sort(s.candidates.begin(), s.candidates.end(), by_id);
    }
    double total = 0;
    s.weights.clear();
    for (const auto & c : s.candidates) {
        s.weights.push_back(std::exp(double(c.logit)));
        total += s.weights.back();
    }
    double rest = uniform(p.seed, n_tokens) * total;
    for (size_t i = 0; i < s.candidates.size(); i++) {
        rest -= s.weights[i];
        if (rest < 0) {
            return uint32_t(s.candidates[i].id);
        }
    }
    return uint32_t(s.candidates.back().id); // where rounding left a crumb
}

uint32_t choosing::choose() {
    bool constrained = false;
    if (grammar != nullptr) {
        if (vocab != grammar->first->of_token.size()) {
            throw failure(DGR_MALFORMED, "the grammar is of another vocabulary");
        }
        grammar->follow(tokens + p.answer_start, n_tokens - p.answer_start);
        constrained = grammar->constrains();
    }
    change();
    const uint32_t best = uint32_t(std::max_element(s.logits.begin(), s.logits.end()) - s.logits.begin());
    if (s.logits[best] == -INFINITY) {
        throw failure(DGR_MALFORMED, "the biases forbid every token; allow one");
    }
    const bool greedy  = p.temperature == 0;
    const bool ordered = p.top_k > 0 && p.top_k < vocab;
    if (constrained) {
        allowed(greedy ? 1 : ordered ? p.top_k : 0);
        const float floor = std::max_element(s.candidates.begin(), s.candidates.end(), [](const auto & a, const auto & b) { return a.logit < b.logit; })->logit - distance();
        s.candidates.erase(std::remove_if(s.candidates.begin(), s.candidates.end(), [&](const auto & c) { return c.logit < floor; }), s.candidates.end());
    }
    if (greedy) {
        return constrained ? uint32_t(s.candidates.front().id) : best;
    }
    if (!constrained && ordered) {
        pick(s.logits.data(), p.top_k, s.logits[best] - distance(), s.candidates);
    } else if (!constrained) {
        above(s.logits[best] - distance());
    }
    truncate(ordered);
    return draw();
}

double log_sum_exp(const float * logits, uint32_t n) {
    const double best = *std::max_element(logits, logits + n);
    double       sum  = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (const double d = double(logits[i]) - best; d > -double(negligible)) {
            sum += std::exp(d);
        }
    }
    return best + std::log(sum);
}

// report fills in log-probabilities of the model's own distribution.
void choosing::report(dgr_choice & choice, dgr_alternative * alternatives) {
    if (p.want_logprob == 0 && p.alternatives == 0) {
        return;
    }
    const double norm = log_sum_exp(raw, vocab);
    choice.logprob    = float(double(raw[choice.token]) - norm);
    if (p.alternatives > 0) {
        pick(raw, p.alternatives, -FLT_MAX, s.block);
        for (const auto & c : s.block) {
            alternatives[choice.alternatives++] = { uint32_t(c.id), float(double(c.logit) - norm) };
        }
    }
}

} // namespace

dgr_code dgr_sampler_new(dgr_sampler ** sampler, char * message, size_t message_size) {
    *sampler = nullptr;
    return dgr::guarded(message, message_size, [&] {
        *sampler = new dgr_sampler();
        return DGR_OK;
    });
}

void dgr_sampler_free(dgr_sampler * sampler) { delete sampler; }

dgr_code dgr_choose(dgr_sampler * sampler, const float * logits, uint32_t vocab, const uint32_t * tokens, size_t n_tokens,
                    const dgr_sampling * sampling, const dgr_bias * biases, dgr_grammar * grammar, dgr_choice * choice,
                    dgr_alternative * alternatives, char * message, size_t message_size) {
    *choice = {};
    return dgr::guarded(message, message_size, [&] {
        check(*sampling, biases, vocab, n_tokens);
        choosing c{ *sampler, logits, vocab, tokens, n_tokens, *sampling, biases, grammar };
        choice->token = c.choose();
        c.report(*choice, alternatives);
        return DGR_OK;
    });
}

dgr_code dgr_sample(dgr_engine * engine, uint32_t row, dgr_sampler * sampler, const uint32_t * tokens, size_t n_tokens,
                    const dgr_sampling * sampling, const dgr_bias * biases, dgr_grammar * grammar, dgr_choice * choice,
                    dgr_alternative * alternatives, char * message, size_t message_size) {
    *choice = {};
    const dgr_code code = dgr::guarded(message, message_size, [&] {
        if (engine->info.boundary_out != 0 || row >= engine->last_rows || !engine->outputs[row]) {
            throw failure(DGR_MALFORMED, format("the last batch left no logits of row %u", row));
        }
        return DGR_OK;
    });
    if (code != DGR_OK) {
        return code;
    }
    return dgr_choose(sampler, llama_get_logits_ith(engine->context.get(), int32_t(row)), engine->info.vocab, tokens, n_tokens,
                      sampling, biases, grammar, choice, alternatives, message, message_size);
}
