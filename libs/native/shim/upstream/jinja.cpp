// The template language, one unit.

#include "jinja/lexer.cpp"
#undef FILENAME
#include "jinja/parser.cpp"
#undef FILENAME
#include "jinja/string.cpp"
#undef FILENAME
#include "jinja/value.cpp"
#undef FILENAME
#include "jinja/runtime.cpp"
#undef FILENAME
#include "jinja/caps.cpp"
