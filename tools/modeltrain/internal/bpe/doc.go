// Package bpe is a small tokenizer that llama.cpp reads back exactly: a vocabulary of the "llama" kind, learned by
// merging the commonest neighbours of one text, with a token for each byte so that any bytes can be encoded.
//
// A space is written ▁ in the vocabulary and begins the word that follows it; a newline is a word of its own. The one
// thing that does not come back as it was is a ▁ in the text: it decodes to a space, here and in llama.cpp.
//
// What must stay out: files and the network.
package bpe
