"""Hosts: where stages run, in main's process or in processes of their own."""
