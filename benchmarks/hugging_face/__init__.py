"""The first step of Hugging Face's models through ``thunderfx``, in a first and in a second process."""
