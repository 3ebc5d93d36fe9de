// The parsers of answers, one unit.

#include "peg-parser.cpp"
#include "chat-peg-parser.cpp"
