"""The part of Thunder that fusioncache is written against. In the end no other folder imports Thunder."""
