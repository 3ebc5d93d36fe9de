// JSON, JSON schemas and their grammars, one unit.

#include "bounds.h"

#include <cstdio>
#include <regex>

#include "json.cpp"
#include "json-schema.cpp"
#include "unicode.cpp"
#include "trie.cpp"

// Upstream writes to stderr that a grammar says less than its schema.
#define fprintf(stream, ...) dgr::incomplete_schema(__VA_ARGS__)
#include "json-schema-to-grammar.cpp"
