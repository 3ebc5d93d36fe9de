package handbook

// SHA256 is the hash of handbook.gguf, in lower-case hexadecimal. Written by tools/modeltrain.
const SHA256 = "d3ee3cb3cda1331d8d5babaa56f1a6527b96f4d9155037bb89dcb62d777d653a"
