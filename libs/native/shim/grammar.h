// A grammar and its state, for the sampler. Nothing here is part of the ABI.

#pragma once

#include "dgr_sample.h"
#include "internal.h"

#include "llama-grammar.h"

namespace dgr {

// first_points are the code points that the tokens of a vocabulary begin with.
struct first_points {
    static constexpr uint32_t none = UINT32_MAX; // it begins inside of one, or ends generation: always asked by itself

    std::vector<uint32_t> points;   // the different ones
    std::vector<uint32_t> of_token; // index into points, or none
};

struct grammar_free {
    void operator()(llama_grammar * g) const { llama_grammar_free_impl(g); }
};

} // namespace dgr

struct dgr_grammar {
    std::shared_ptr<const dgr::first_points>             first;
    std::unique_ptr<llama_grammar, dgr::grammar_free>    state;
    bool                                                 anchored = false; // a pattern looks at the whole answer
    llama_grammar_stacks                                 start_stacks;     // before the answer
    llama_partial_utf8                                   start_partial{};
    std::vector<uint32_t>                                seen; // the answer's tokens that the state has consumed
    bool                                                 astray = false; // the state is of no use: begin anew

    // follow makes the state that of the answer. Throws failure(DGR_INVALID_GRAMMAR).
    void follow(const uint32_t * answer, size_t n);

    // constrains says whether any token may be forbidden now.
    bool constrains() const { return !state->awaiting_trigger; }

    // strike removes the tokens that may not come next, and keeps the order of the others. Throws failure(DGR_INVALID_GRAMMAR)
    // where that takes too much work.
    void strike(std::vector<llama_token_data> & candidates);

  private:
    void                 restart();
    void                 accept(llama_token token);
    void                 shorten_buffer();
    std::vector<uint8_t> open_points() const;

    std::vector<llama_token_data> asked;
};
